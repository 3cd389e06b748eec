"""Documents as bytes: a .txt, .py or .md file is one, a .jsonl file has one a line."""

import json
import reprlib

from jaxpipe.data.files import TextFile
from jaxpipe.errors import InputError


def read_documents(file: TextFile, *, field: str) -> list[bytes]:
    """The documents of a file that are not empty, in order; bytes need not be valid UTF-8.

    ``InputError`` names the file, and of a .jsonl file the first line that has no text in ``field``.
    """
    try:
        content = file.path.read_bytes()
    except OSError as error:
        raise InputError(f"{file.path} cannot be read: {error.strerror}") from error
    if file.path.suffix != ".jsonl":
        return [content] if content else []
    documents = [
        _text_of_line(line, field=field, where=f"{file.path}:{number}")
        for number, line in enumerate(content.split(b"\n"), start=1)
        if line.strip()
    ]
    return [document for document in documents if document]


def _text_of_line(line: bytes, *, field: str, where: str) -> bytes:
    try:
        record = json.loads(line)
    except RecursionError as error:
        raise InputError(f"{where}: the JSON is nested too deeply; mend or remove the line") from error
    except ValueError as error:  # JSON that is malformed, and bytes that are no UTF-8
        raise InputError(f"{where}: not a line of JSON ({error}); mend or remove it") from error
    if not isinstance(record, dict) or field not in record:
        held = f"it has {', '.join(record) or 'none'}" if isinstance(record, dict) else "it is no object"
        raise InputError(f"{where}: there is no field {field!r} ({held}); set data.field")
    if not isinstance(record[field], str):
        raise InputError(
            f"{where}: field {field!r} must be text, found {reprlib.repr(record[field])}; set data.field"
        )
    return record[field].encode("utf-8", "surrogatepass")
