"""What the C examples and the trainer call themselves is what they run: methods_test.py WATCH RUN EXAMPLES TRAINER, where WATCH is the
library of method_watch.c."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

WATCH, RUN, EXAMPLES, TRAINER = sys.argv[1:5]
METHODS = ["post-local-sgd", "diloco", "streaming-diloco", "decoupled-diloco", "co2", "edit", "a-edit", "sparseloco", "zero1", "acco", "dpu",
           "wp"]


class Methods(unittest.TestCase):
    def methods_of(self, *command):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "methods"
            done = subprocess.run([RUN, "-n", "2", "--", *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100,
                                  env={**os.environ, "LD_PRELOAD": WATCH, "TEST_METHODS": str(file)})
            self.assertEqual(done.returncode, 0, done.stdout)
            return sorted(set(file.read_text().split())) if file.exists() else []

    def test_examples(self):
        self.assertEqual(self.methods_of(f"{EXAMPLES}/example_04_edit"), ["edit"])
        self.assertEqual(self.methods_of(f"{EXAMPLES}/example_05_acco"), ["acco"])
        self.assertEqual(self.methods_of(f"{EXAMPLES}/example_06_embed_edit"), ["edit"])
        self.assertEqual(self.methods_of(f"{EXAMPLES}/example_07_elastic_edit"), ["edit"])

    def test_the_trainer(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text"
            text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
            small = ["--data", str(text), "--steps", "4", "--hidden-size", "8", "--layers", "2", "--heads", "1", "--seq-length", "8",
                     "--batch-size", "2"]
            for method in METHODS:
                with self.subTest(method):
                    self.assertEqual(self.methods_of(TRAINER, "--method", method, *small), [method])
            self.assertEqual(self.methods_of(TRAINER, "--method", "ddp", *small), [])

    def test_options_that_make_another_method_are_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text"
            text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
            self.assertNotEqual(self.methods_of(TRAINER, "--method", "edit", "--no-skip-anomaly", "--data", str(text), "--steps", "4",
                                                "--hidden-size", "8", "--layers", "2", "--heads", "1", "--seq-length", "8"), ["edit"])


unittest.main(argv=sys.argv[:1])
