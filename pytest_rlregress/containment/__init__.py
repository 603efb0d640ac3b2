"""A test in a process of its own: warm start, named signals, a time limit, no survivor.

The rooms, in the order of a contained test:

``plugin``      pytest's side: which tests are contained, what they share, what their end means
``client``      this process' handle on a warm server and on a contained child
``server``      the warm server: imports the stack once, forks a supervised child on request
``supervisor``  between server and child: takes in every orphan, reports how the child ended, leaves nothing alive
``worker``      pytest inside the child: runs what it is told, sends the reports back
"""
