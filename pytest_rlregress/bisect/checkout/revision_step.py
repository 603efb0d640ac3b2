"""The step that ``git bisect run`` starts at each commit: a script, not a module, so that no folder comes in its way.

It asks the bisect, through the socket whose file descriptor it is given, and ends with the exit code that it is told.
"""

import os
import sys

#: Git stops at this: what is asked has ended.
STOP = 255

if __name__ == "__main__":
    code = STOP
    try:
        os.write(int(sys.argv[1]), b"?")
        code = int(os.read(int(sys.argv[1]), 9))
    finally:
        os._exit(code)
