import os
import subprocess
import sys

import ptn_engine_vulkan
import pytest
from ptn_engine_vulkan import _native
from ptn_engine_vulkan.engine import VulkanEngine
from ptn_format.dtypes import ScalarType
from ptn_runtime.engine import API_VERSION, Device
from ptn_runtime.errors import DeviceError
from ptn_runtime.lowering.static import StaticNode, Value


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_versions_agree():
    assert _native.__version__ == ptn_engine_vulkan.__version__


def test_the_spec_is_of_this_api_and_importing_it_loads_nothing_native():
    spec = ptn_engine_vulkan.SPEC
    assert spec.api_version[0] == API_VERSION[0]
    assert spec.api_version[1] <= API_VERSION[1]
    loaded = run_python("import sys, ptn_engine_vulkan; print('ptn_engine_vulkan._native' in sys.modules)")
    assert loaded == "False"


def test_lavapipe_is_listed():
    devices = VulkanEngine().devices()
    assert devices, VulkanEngine().unavailable()
    assert all(device.memory_bytes for device in devices)
    assert len({device.id for device in devices}) == len(devices)
    assert any(device.kind == "cpu" and device.id.startswith("software:") for device in devices)


def test_without_a_driver_there_are_no_devices_and_a_reason():
    code = (
        "from ptn_engine_vulkan.engine import VulkanEngine as E; e = E(); "
        "print(len(e.devices())); print(e.unavailable())"
    )
    lines = run_python(code, VK_DRIVER_FILES="/nonexistent.json", VK_ICD_FILENAMES="/nonexistent.json").splitlines()
    assert lines[0] == "0"
    assert "driver" in lines[1]


def test_every_node_is_refused_with_the_reason():
    value = Value(0, "y", ScalarType.FLOAT, (2,))
    node = StaticNode("relu", "aten.relu.default", {}, (value,))
    device = Device("gpu:0", "gpu", "test")
    support = VulkanEngine().supports(node, device)
    assert not support.ok
    assert "no kernel" in support.reason
    with pytest.raises(DeviceError, match=r"cannot run on 'gpu:0' \(test\)"):
        VulkanEngine().create_host(device)
    with pytest.raises(TypeError, match="takes no options, got speed"):
        VulkanEngine().create_host(device, speed=1)
