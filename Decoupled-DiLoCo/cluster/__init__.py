"""What a distributed script needs; docs/folder.md of the guide has a map of it.

To take over a newer VERSION replace all of cluster/, launch.py and run.sh, then try
run.sh --check; all tasks of one run must have the same.
"""

import os

VERSION = 3
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
