"""How numbers with a unit are written for people."""


def format_bytes(size: float) -> str:
    """Bytes in binary units: 1536 is 1.5 KiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def counted(number: int, noun: str) -> str:
    """``1 file``, ``12,000 files``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
