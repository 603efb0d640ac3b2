"""A test in a process of its own: warm start, named ends, limits, no survivor. docs/containment.md has the promises.

The modules, in the order of a contained test:

``grouping``          which tests are contained and share a child, what is imported before it starts, what it may use
``scheduling``        the same for pytest-xdist: tests that share a child share a worker
``plugin``            pytest's side: runs a test in its child and logs its reports as if it had run here
``inline``            contained tests in pytest's own process instead, for debugging
``reruns``            what pytest-rerunfailures asks for
``pool``              the servers and children of one session, and the GPUs that they hold
``gpu_lock``          gives a GPU to one process at a time
``client``            this process' handle on a warm server
``child``             this process' handle on a contained child: watches its limits, tells how it ended
``death``             how a child ended, and what its other processes left
``server``            the warm server: imports the stack once, forks a supervised child on request
``supervisor``        between server and child: takes in every orphan, reports how the child ended, leaves nothing alive
``worker``            pytest inside the child: runs the tests it is given, sends the reports back
``child_config``      the options and plugins of that pytest
``acts``              inside the child: whether a test that came to its end did the failing act
``leaks``             inside the child: what a test left behind
``reports``           what a report amounts to, and the report of a test whose process did not live to write one

What they look at:

``stacks``            Python and native stacks of a process and its descendants
``logs``              the logs a test depends on: stalls, last lines, what Ray's workers died of
``post_mortem``       of a dead process: its native libraries, whether memory ran out
``gpu_memory``        who holds memory on a GPU
``leftovers``         the session's temporary folder, and shared memory that nobody needs any more
"""
