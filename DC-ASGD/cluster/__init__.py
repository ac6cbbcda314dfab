"""What a distributed script needs around its scheme; in a copy, keep it as it is.

README.md of Distributed-Setup has a map of the modules: what each is for. To take over
a newer VERSION replace all of cluster/, launch.py and run.sh, then try run.sh --check;
all tasks of one run must have the same.
"""

import os

VERSION = 2
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
