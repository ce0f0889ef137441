"""Takes `vllm-rs`, the load generator of vLLM, out of its wheel.

usage: vllm_rs.py FOLDER VERSION

The wheel comes through pip and is thrown away; the program runs alone. It is FOLDER/vllm-rs in the end.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile


def main():
    folder, version = pathlib.Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*command, "--dest", scratch, f"vllm=={version}"], check=True)
        [wheel] = pathlib.Path(scratch).glob("*.whl")
        found = zipfile.ZipFile(wheel).extract("vllm/vllm-rs", scratch)
        os.chmod(found, 0o755)
        os.replace(found, folder / "vllm-rs")


if __name__ == "__main__":
    main()
