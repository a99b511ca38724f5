"""The Kubernetes job of the guide: its command gives each pod the shard that follows from its index."""

import re
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="Ray brings it along, which make test-integrations installs")
PAGE = Path(__file__).parents[3] / "docs" / "clusters.md"


def test_pods_train_shards_1_to_n() -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    job = yaml.safe_load(text)["spec"]
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    assert job["completionMode"] == "Indexed"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    [script] = container["args"]
    for index in range(job["completions"]):
        command = [*container["command"], script.replace("exec dualfocal", "echo")]
        printed = subprocess.run(
            command, env={"JOB_COMPLETION_INDEX": str(index)}, capture_output=True, text=True, check=True
        ).stdout
        assert printed.split()[-2:] == ["--shard", f"{index + 1}/{job['completions']}"]
