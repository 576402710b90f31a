from typing import TypedDict

__version__: str

class DeviceInfo(TypedDict):
    name: str
    type: str
    api_version: str
    memory_bytes: int

def list_devices() -> tuple[list[DeviceInfo], str]: ...
