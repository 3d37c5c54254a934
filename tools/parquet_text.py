"""parquet_text.py: the strings of a one-column Parquet file, with the standard library only.

Reads what text data sets ship: one optional or required BYTE_ARRAY column, v1 data pages, PLAIN or dictionary encoding, Snappy or
no compression. Anything else is refused by name. The caller checks a hash of the result, so a wrong answer cannot go unnoticed.
"""

import struct


class ParquetError(ValueError):
    pass


class _Compact:
    """Thrift's compact protocol, as far as Parquet's footers and page headers need it: structs become {field id: value}."""

    def __init__(self, data, pos=0):
        self.data, self.pos = data, pos

    def varint(self):
        result = shift = 0
        while True:
            byte = self.data[self.pos]
            self.pos += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7

    def zigzag(self):
        n = self.varint()
        return (n >> 1) ^ -(n & 1)

    def value(self, kind):
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            self.pos += 1
            return self.data[self.pos - 1]
        if kind in (4, 5, 6):
            return self.zigzag()
        if kind == 7:
            self.pos += 8
            return struct.unpack_from("<d", self.data, self.pos - 8)[0]
        if kind == 8:
            size = self.varint()
            self.pos += size
            return bytes(self.data[self.pos - size : self.pos])
        if kind in (9, 10):
            head = self.data[self.pos]
            self.pos += 1
            count = self.varint() if head >> 4 == 15 else head >> 4
            return [self.value(head & 15) for _ in range(count)]
        if kind == 12:
            return self.struct()
        raise ParquetError(f"thrift type {kind} is not supported")

    def struct(self):
        fields, last = {}, 0
        while True:
            head = self.data[self.pos]
            self.pos += 1
            if head == 0:
                return fields
            last = last + (head >> 4) if head >> 4 else self.zigzag()
            fields[last] = self.value(head & 15)


def unsnappy(data):
    """One raw Snappy block."""
    reader = _Compact(data)
    size = reader.varint()
    pos, out = reader.pos, bytearray()
    while pos < len(data):
        tag = data[pos]
        pos += 1
        if tag & 3 == 0:
            length = tag >> 2
            if length >= 60:
                extra = length - 59
                length = int.from_bytes(data[pos : pos + extra], "little")
                pos += extra
            out += data[pos : pos + length + 1]
            pos += length + 1
            continue
        if tag & 3 == 1:
            length, offset = 4 + ((tag >> 2) & 7), (tag >> 5) << 8 | data[pos]
            pos += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length, offset = 1 + (tag >> 2), int.from_bytes(data[pos : pos + width], "little")
            pos += width
        if not 0 < offset <= len(out):
            raise ParquetError("a Snappy block points before its beginning")
        start = len(out) - offset
        if offset >= length:
            out += out[start : start + length]
        else:  # the copy overlaps what it writes: it repeats a pattern
            pattern = bytes(out[start:])
            out += (pattern * (length // offset + 1))[:length]
    if len(out) != size:
        raise ParquetError("a Snappy block is cut short")
    return bytes(out)


def _hybrid(data, width, count):
    """Parquet's mix of runs and bit-packed groups of eight."""
    reader, out = _Compact(data), []
    while len(out) < count:
        head = reader.varint()
        if head & 1:
            size = (head >> 1) * width
            out += _unpack(data[reader.pos : reader.pos + size], width)
            reader.pos += size
        else:
            size = (width + 7) // 8
            out += [int.from_bytes(data[reader.pos : reader.pos + size], "little")] * (head >> 1)
            reader.pos += size
    return out[:count]


def _unpack(data, width):
    # Eight values at a time: shifting one huge integer would take time that grows with the square of its length.
    out, mask = [], (1 << width) - 1
    for start in range(0, len(data), width):
        bits = int.from_bytes(data[start : start + width], "little")
        out += [(bits >> (i * width)) & mask for i in range(8)]
    return out


def _plain(data, count):
    out, pos = [], 0
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, pos)
        out.append(bytes(data[pos + 4 : pos + 4 + size]))
        pos += 4 + size
    return out


def _chunk(data, meta, optional):
    """The values of one column chunk. Field numbers are those of parquet.thrift."""
    values, dictionary, left = [], [], meta[5]
    pos = min(meta[9], meta.get(11, meta[9]))
    while left > 0:
        reader = _Compact(data, pos)
        header = reader.struct()
        pos = reader.pos + header[3]
        page = data[reader.pos : pos]
        if meta[4] == 1:
            page = unsnappy(page)
        elif meta[4] != 0:
            raise ParquetError(f"compression codec {meta[4]} is not supported, only Snappy")
        if header[1] == 2:
            dictionary = _plain(page, header[7][1])
            continue
        if header[1] != 0:
            raise ParquetError(f"page type {header[1]} is not supported")
        count, encoding = header[5][1], header[5][2]
        present = count
        if optional:
            (size,) = struct.unpack_from("<I", page)
            present = sum(_hybrid(page[4 : 4 + size], 1, count))
            page = page[4 + size :]
        if present != count:
            raise ParquetError("null rows are not supported")
        if encoding == 0:
            values += _plain(page, count)
        elif encoding in (2, 8):
            values += [dictionary[i] for i in _hybrid(page[1:], page[0], count)]
        else:
            raise ParquetError(f"encoding {encoding} is not supported")
        left -= count
    return values


def read_strings(data):
    """Every row of the file's only column, in order, as bytes."""
    try:
        if data[:4] != b"PAR1" or data[-4:] != b"PAR1":
            raise ParquetError("not a Parquet file")
        (size,) = struct.unpack_from("<I", data, len(data) - 8)
        footer = _Compact(data, len(data) - 8 - size).struct()
        leaves = [element for element in footer[2] if 1 in element]
        if len(leaves) != 1 or leaves[0][1] != 6:
            raise ParquetError("the file does not have exactly one string column")
        rows = []
        for group in footer[4]:
            rows += _chunk(data, group[1][0][3], leaves[0].get(3, 0) == 1)
        return rows
    except (IndexError, KeyError, struct.error) as problem:
        raise ParquetError(f"the Parquet file is damaged ({problem!r})") from problem
