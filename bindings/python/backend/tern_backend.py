"""The build backend of the package (PEP 517 and 660), so that `pip install` needs no other package and no network.

A wheel has the Python files and, if it can be found or built, libtern.so: the file that TERN_LIBRARY names, or what
`make lib` builds in the checkout that this folder is part of. Without either, the package looks for an installed
libtern when it is imported.
"""
import base64
import hashlib
import io
import os
import re
import subprocess
import sysconfig
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
FOLDERS = ("tern", "backend", "tests")


def _field(name):
    text = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    return re.search(rf'^{name} = "(.*)"$', text, re.M)[1]


NAME, VERSION = "tern", _field("version")
DIST_INFO = f"{NAME}-{VERSION}.dist-info"


def _metadata():
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    return (f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\nSummary: {_field('description')}\n"
            f"License: MIT\nRequires-Python: {_field('requires-python')}\n"
            f"Description-Content-Type: text/markdown\n\n{readme}")


def _build_library():
    """The path of libtern.so, built if needed; None: this is no checkout."""
    given = os.environ.get("TERN_LIBRARY")
    if given:
        return Path(given).resolve(strict=True)
    if not ((ROOT / "Makefile").is_file() and (ROOT / "include/tern.h").is_file()):
        return None
    jobs = f"-j{len(os.sched_getaffinity(0))}"
    done = subprocess.run(["make", "-s", "-C", str(ROOT), jobs, "lib"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"`make lib` failed in {ROOT}. `tools/deps build` installs the packages that it needs; "
                           f"TERN_LIBRARY=/path/to/libtern.so takes a library that is built.\n{done.stdout[-2000:]}")
    return (ROOT / "build/lib/libtern.so").resolve(strict=True)


def _tag(has_library):
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform()) if has_library else "any"
    return f"py3-none-{platform}"


class _Wheel:
    """A zip file that writes its RECORD at the end."""

    def __init__(self, folder, has_library):
        self.tag, self.record = _tag(has_library), []
        self.is_pure = not has_library
        self.name = f"{NAME}-{VERSION}-{self.tag}.whl"
        self.zip = zipfile.ZipFile(Path(folder) / self.name, "w", zipfile.ZIP_DEFLATED)

    def add(self, name, data, mode=0o644):
        data = data.encode() if isinstance(data, str) else data
        info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
        info.external_attr, info.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}")

    def close(self):
        pure = "true" if self.is_pure else "false"
        self.add(f"{DIST_INFO}/METADATA", _metadata())
        self.add(f"{DIST_INFO}/WHEEL", f"Wheel-Version: 1.0\nGenerator: tern_backend\nRoot-Is-Purelib: {pure}\n"
                                       f"Tag: {self.tag}\n")
        self.record.append(f"{DIST_INFO}/RECORD,,")
        self.zip.writestr(f"{DIST_INFO}/RECORD", "\n".join(self.record) + "\n")
        self.zip.close()
        return self.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    library = _build_library()
    wheel = _Wheel(wheel_directory, library is not None)
    for path in sorted((HERE / "tern").iterdir()):
        if path.suffix == ".py" or path.name == "py.typed":
            wheel.add(f"tern/{path.name}", path.read_bytes())
    if library:
        wheel.add("tern/libtern.so", library.read_bytes(), 0o755)
    return wheel.close()


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """A path file: the package is imported from here, and finds the library in the checkout's build folder."""
    _build_library()
    wheel = _Wheel(wheel_directory, False)
    wheel.add(f"__editable__.{NAME}.pth", f"{HERE}\n")
    return wheel.close()


def build_sdist(sdist_directory, config_settings=None):
    """Without the library's sources: it is built from a checkout."""
    base = f"{NAME}-{VERSION}"
    files = [HERE / "pyproject.toml", HERE / "README.md"]
    for folder in FOLDERS:
        files += sorted(p for p in (HERE / folder).iterdir() if p.suffix == ".py" or p.name == "py.typed")
    with tarfile.open(Path(sdist_directory) / f"{base}.tar.gz", "w:gz") as tar:
        for path in files:
            tar.add(path, f"{base}/{path.relative_to(HERE)}")
        info, data = tarfile.TarInfo(f"{base}/PKG-INFO"), _metadata().encode()
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return f"{base}.tar.gz"


def get_requires_for_build_wheel(config_settings=None):
    return []


get_requires_for_build_editable = get_requires_for_build_sdist = get_requires_for_build_wheel
