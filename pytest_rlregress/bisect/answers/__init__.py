"""The answer of a bisect, and its progress.

``progress``   one line for every trial while it goes on
``answer``     what was found: its parts
``rendering``  the answer as text, Markdown and JSON
``text``       what all of these show: redacted, quoted, counted
"""
