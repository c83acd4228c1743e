"""Checks that the pictures and the tables of costs in docs/learn are what the scripts beside them make: learn_test.py [TRAINER]. With
the program entrain-train, checks that it knows the flags of the pages."""

import pathlib
import re
import subprocess
import sys
import unittest

LEARN = pathlib.Path(__file__).parents[2] / "docs/learn"
sys.path.insert(0, str(LEARN))
import costs  # noqa: E402  (the path comes first)
import draw  # noqa: E402

TRAINER = sys.argv.pop(1) if __name__ == "__main__" and len(sys.argv) > 1 else ""


class Learn(unittest.TestCase):
    def setUp(self):
        self.pages = {page.stem: page.read_text(encoding="utf-8") for page in LEARN.glob("*.md")}

    def test_pictures(self):
        self.assertEqual({path.stem for path in LEARN.glob("*.svg")}, set(draw.PICTURES))
        for name, picture in draw.PICTURES.items():
            self.assertEqual((LEARN / f"{name}.svg").read_text(encoding="utf-8"), draw.svg(picture), name)
            shown = [page for page, text in self.pages.items() if f"({name}.svg)" in text]
            self.assertEqual(len(shown), 1, f"{name}.svg is shown on {shown}")

    def test_bars_of_a_line_do_not_overlap(self):
        for name, picture in draw.PICTURES.items():
            for line, _ in picture.lines:
                bars = sorted((begin, end) for at, begin, end, kind, _ in picture.bars if at == line and kind != "outer")
                for (_, end), (begin, _) in zip(bars, bars[1:]):
                    self.assertLessEqual(end, begin + 1e-9, f"{name}: {line}")

    def test_costs(self):
        for name, text in self.pages.items():
            self.assertEqual(text, costs.with_tables(text), f"{name}.md: docs/learn/costs.py writes what is there")
        shown = [match[2] for text in self.pages.values() for match in costs.BLOCK.finditer(text)]
        self.assertEqual(sorted(shown), sorted([*costs.WAYS, "acco"]))

    def test_a_changed_number_is_noticed(self):
        text = self.pages["edit"]
        changed = re.sub(r"\d\.\d\d GB", "9.99 GB", text, count=1)
        self.assertNotEqual(changed, text)
        self.assertEqual(costs.with_tables(changed), text)

    @unittest.skipUnless(TRAINER, "without entrain-train")
    def test_flags_are_those_of_the_trainer(self):
        flags = {flag for text in self.pages.values() for flag in re.findall(r"(?<!\S)`?(--[a-z][a-z-]+)", text)}
        self.assertGreater(len(flags), 15)
        known = subprocess.run([TRAINER, "--help"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(flags - set(re.findall(r"--[a-z][a-z0-9-]+", known)), set())

    def test_symbols_are_defined_once(self):
        table = self.pages["README"].split("## Symbols", 1)[1].split("\n## ", 1)[0]
        symbols = [symbol for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for symbol in re.findall(r"\$(.*?)\$", row)]
        self.assertGreater(len(symbols), 30)
        self.assertEqual(len(symbols), len(set(symbols)), symbols)


if __name__ == "__main__":
    unittest.main()
