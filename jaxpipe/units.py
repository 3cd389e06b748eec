"""How numbers with a unit are written for people."""


def format_bytes(size: float) -> str:
    """Bytes in binary units: 1536 is 1.5 KiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
