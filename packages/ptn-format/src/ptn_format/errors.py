"""The one error family of the format: whatever is wrong with a file is a `FormatError`."""

from __future__ import annotations

__all__ = [
    "ArchiveError",
    "ConstantError",
    "FormatError",
    "GraphError",
    "LimitError",
    "NotAPackageError",
    "ProgramError",
    "SignatureError",
    "UnsupportedVersionError",
    "WeightsError",
    "WriteError",
]


class FormatError(Exception):
    """A `.ptn` file, or what was to become one, is not as the format demands.

    Attributes:
        reason: what is wrong and what to do, without the place.
        file: the file's path, or a description such as `<bytes>`.
        member: the zip member, where one is concerned.
        place: where in the member: a tensor's or node's name, a byte offset.
    """

    def __init__(
        self,
        reason: str,
        *,
        file: str | None = None,
        member: str | None = None,
        place: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.file = file
        self.member = member
        self.place = place

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.file, self.member, self.place) if part)
        return f"{where}: {self.reason}" if where else self.reason

    def at(self, *, file: str | None = None, member: str | None = None, place: str | None = None) -> FormatError:
        """Fills in what is not known of the place yet; returns the error itself."""
        self.file = self.file or file
        self.member = self.member or member
        self.place = self.place or place
        return self


class NotAPackageError(FormatError):
    """The file is something else; the text says what it looks like."""


class ArchiveError(FormatError):
    """The zip archive is damaged, cut short, or uses what the format forbids."""


class ProgramError(FormatError):
    """`program.ptg` is damaged."""


class UnsupportedVersionError(FormatError):
    """The program was written for a format that this release cannot read."""


class GraphError(FormatError):
    """The program decodes but breaks a structural rule."""


class SignatureError(FormatError):
    """The calling convention kept in the metadata is damaged."""


class WeightsError(FormatError):
    """`program.safetensors` or `aliases.json` is damaged."""


class ConstantError(FormatError):
    """A constant is missing, or its bytes do not fit what the program says of it."""


class LimitError(FormatError):
    """A size exceeds what a reader of this release accepts."""


class WriteError(FormatError):
    """What was to be written cannot be held by the format."""
