#!/usr/bin/python3
"""Writes scikit-learn's images of handwritten digits (load_digits) as entrain-train --task digits
reads them: a line each, the 64 pixels of an 8 x 8 image row by row, 0 (paper) to 16, then the
digit, separated by blanks. The 1797 lines are in an order drawn from a fixed seed, so that the last
fifth, which is for validation, is like the rest. The images are in the package (Debian's
python3-sklearn): nothing is downloaded, and the same file is written each time."""

import argparse
import random
import sys

SEED = 1


def lines():
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        sys.exit(f"digits.py: {error}; Debian's package python3-sklearn has it")
    data = load_digits()
    rows = [
        " ".join(str(int(value)) for value in [*pixels, digit])
        for pixels, digit in zip(data.data, data.target)
    ]
    random.Random(SEED).shuffle(rows)
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="to write")
    args = parser.parse_args()
    text = "\n".join(lines()) + "\n"
    try:
        with open(args.file, "w", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        sys.exit(f"digits.py: cannot write '{args.file}': {error.strerror}")


if __name__ == "__main__":
    main()
