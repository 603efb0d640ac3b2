"""A git checkout under bisect.

``commits``   its commits as candidates
``worktree``  git, in a worktree of its own
``editable``  the project installed from it: its name, its build, whether it is what gets imported
"""
