"""Keeps the output of a build in a log and shows how far ninja is: `setup.py ... | progress.py LOG`.

One line, written over and over, on a terminal; elsewhere a line every 15 seconds. The build's own messages pass.
"""

import re
import sys
import time


def main() -> None:
    """Reads to the end of the input."""
    terminal = sys.stdout.isatty()
    start = shown = time.monotonic()
    with open(sys.argv[1], "w") as log:
        for line in sys.stdin:
            log.write(line)
            log.flush()
            if line.startswith("torch_reduce:"):
                print(line, end="", flush=True)
            found = re.match(r"\[(\d+)/(\d+)\] .*?([\w.-]+)\.o\b", line)
            now = time.monotonic()
            last = found and found.group(1) == found.group(2)
            if found and (terminal or last or now - shown > 15):
                shown = now
                text = f"compiled {found.group(1)} of {found.group(2)}, {now - start:.0f} s"
                print(f"\r{text}: {found.group(3):30}" if terminal else text, end="" if terminal else "\n", flush=True)
    if terminal:
        print()


if __name__ == "__main__":
    main()
