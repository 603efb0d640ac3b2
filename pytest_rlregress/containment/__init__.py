"""A test in a process of its own: warm start, named signals, a time limit, no survivor.

The rooms, in the order of a contained test:

``places``      which tests are contained, which share a child, what is imported before it starts
``scheduling``  the same for pytest-xdist: tests that share a child share a worker
``plugin``      pytest's side: runs a test in its child and logs its reports as if it had run here
``pool``        the servers and children of one session
``client``      this process' handle on a warm server and on a contained child
``server``      the warm server: imports the stack once, forks a supervised child on request
``supervisor``  between server and child: takes in every orphan, reports how the child ended, leaves nothing alive
``worker``      pytest inside the child: runs what it is told, sends the reports back
``reports``     what a report amounts to, and the report of a test whose process did not live to write one
"""
