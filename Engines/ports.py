"""Free ports and a network of one's own, for the run.sh of the engines.

python Engines/ports.py 3          prints three free ports
python Engines/ports.py 3 2222     prints 2222 2223 2224, or says which is in use
python Engines/ports.py up [3]     first, in a network of its own: switches loopback on
"""

import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "Distributed-Setup"))

import launch  # noqa: E402

if __name__ == "__main__":
    try:
        arguments = sys.argv[1:]
        if arguments[:1] == ["up"]:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            del arguments[0]
        if arguments:
            print(*launch.free_ports(*map(int, arguments)))
    except launch.End as end:
        launch.say(end.args[1], screen=2)
        sys.exit(end.args[0])
