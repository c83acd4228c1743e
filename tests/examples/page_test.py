"""Checks that the tables of docs/experiments.md and README.md follow from the results in examples/results."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import experiments  # noqa: E402  (the path comes first)


class Page(unittest.TestCase):
    def setUp(self):
        self.found = experiments.kept_tables()
        self.page = "".join(page.read_text(encoding="utf-8") for page in experiments.PAGES)

    def test_every_table_is_that_of_the_kept_results(self):
        shown = {
            match[2]: match[0].split("\n", 1)[1] for match in experiments.TABLE.finditer(self.page)
        }
        self.assertEqual(set(shown), set(self.found), "`experiments.py page` writes what is there")
        for name, text in shown.items():
            self.assertEqual(text, self.found[name] + "<!-- end -->", name)

    def test_a_changed_number_is_noticed(self):
        changed = self.page.replace(" 1.7", " 1.6", 1)
        self.assertNotEqual(changed, self.page)
        self.assertEqual(experiments.with_tables(changed, self.found), self.page)

    def test_kept_results_are_small(self):
        total = sum(path.stat().st_size for path in experiments.RESULTS.iterdir())
        self.assertLess(total, 2_000_000)


if __name__ == "__main__":
    unittest.main()
