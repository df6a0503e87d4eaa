"""`pip install ./bindings/python` without network, into a folder of its own; where the library is looked for."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tern

from .world import LIMIT, MODEL, ROOT

HERE = Path(__file__).resolve().parents[1]
PROGRAM = ("import sys, tern; print(tern.LIBRARY_PATH); m = tern.Model(sys.argv[1], threads=1, context=256); "
           "print(m.generate('text', max_tokens=8, temperature=0).text)")


def run(*command, **env):
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TERN_LIBRARY")}
    return subprocess.run(command, capture_output=True, text=True, timeout=10 * LIMIT, cwd="/", env={**clean, **env})


class Installing(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)

    def test_pip_installs_offline(self):
        pip = run(sys.executable, "-m", "pip", "--version")
        if pip.returncode:
            self.skipTest("this Python has no pip")
        target = f"{self.dir}/target"
        done = run(sys.executable, "-m", "pip", "install", "--no-index", "--target", target, str(HERE),
                   TERN_LIBRARY=tern.LIBRARY_PATH, PIP_DISABLE_PIP_VERSION_CHECK="1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(os.path.exists(f"{target}/tern/py.typed"))
        done = run(sys.executable, "-c", PROGRAM, MODEL, PYTHONPATH=target)
        self.assertEqual(done.returncode, 0, done.stderr)
        path, text = done.stdout.split("\n", 1)
        self.assertEqual(path, f"{target}/tern/libtern.so")
        self.assertTrue(text.strip())

    def test_wheel_and_sdist_without_pip(self):
        code = f"import sys; sys.path.insert(0, {str(HERE / 'backend')!r}); import tern_backend as b; "
        for call in ("build_wheel", "build_sdist", "build_editable"):
            done = run(sys.executable, "-c", f"{code}print(b.{call}({self.dir!r}))", TERN_LIBRARY=tern.LIBRARY_PATH)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(os.path.exists(f"{self.dir}/{done.stdout.strip()}"))

    def test_a_library_that_is_not_there_is_an_import_error(self):
        done = run(sys.executable, "-c", "import tern", PYTHONPATH=str(HERE), TERN_LIBRARY="/no/such/libtern.so")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/no/such/libtern.so", done.stderr)
        self.assertIn("make lib", done.stderr)

    def test_the_versions_agree(self):
        makefile = (ROOT / "Makefile").read_text()
        self.assertIn(f"VERSION := {tern.__version__}\n", makefile)
        self.assertIn(f'version = "{tern.__version__}"', (HERE / "pyproject.toml").read_text())


if __name__ == "__main__":
    unittest.main()
