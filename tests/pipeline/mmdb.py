"""A small writer of MMDB files, by MaxMind's public specification of the format."""

import ipaddress

UINT16, UINT32, UINT64 = 5, 6, 9


def _encoded(value):
    """A value of the data section: maps, lists, texts and (type, number)."""
    if isinstance(value, dict):
        pairs = b"".join(_encoded(key) + _encoded(one) for key, one in value.items())
        return bytes([7 << 5 | len(value)]) + pairs
    if isinstance(value, str):
        size = len(value)
        return bytes([2 << 5 | size] if size < 29 else [2 << 5 | 29, size - 29]) + value.encode()
    if isinstance(value, list):
        return bytes([len(value), 11 - 7]) + b"".join(map(_encoded, value))
    kind, number = value if isinstance(value, tuple) else (UINT32, value)
    size = {UINT16: 2, UINT32: 4, UINT64: 8}[kind]
    head = [size, kind - 7] if kind > 7 else [kind << 5 | size]
    return bytes(head) + number.to_bytes(size, "big")


def write_mmdb(path, networks):
    """Write {network: record}, networks of IPv4 or IPv6, with records of 24 bits."""
    nodes = [[None, None]]
    data, places = b"", {}
    for text, record in networks.items():
        network = ipaddress.ip_network(text)
        places[text] = len(data)
        data += _encoded(record)
        number, length = int(network.network_address), network.prefixlen
        length += 96 if network.version == 4 else 0
        bits = f"{number:0128b}"[:length]
        node = 0
        for bit in map(int, bits[:-1]):
            if nodes[node][bit] is None:
                nodes.append([None, None])
                nodes[node][bit] = len(nodes) - 1
            node = nodes[node][bit]
        nodes[node][int(bits[-1])] = text
    count = len(nodes)

    def pointer(one):
        if one is None:
            return count
        return count + 16 + places[one] if isinstance(one, str) else one

    tree = b"".join(pointer(one).to_bytes(3, "big") for node in nodes for one in node)
    metadata = {
        **{"node_count": count, "record_size": (UINT16, 24), "ip_version": (UINT16, 6)},
        **{"database_type": "Test", "languages": ["en"], "description": {"en": "test"}},
        **{"binary_format_major_version": (UINT16, 2), "build_epoch": (UINT64, 1)},
        "binary_format_minor_version": (UINT16, 0),
    }
    path.write_bytes(tree + bytes(16) + data + b"\xab\xcd\xefMaxMind.com" + _encoded(metadata))
    return path
