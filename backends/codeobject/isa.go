package codeobject

import (
	"bytes"
	"encoding/binary"
)

// processorOf names the EF_AMDGPU_MACH number of a code object's e_flags; "" when it is not known. The numbers are
// LLVM's.
func processorOf(mach uint32) string {
	switch mach {
	case 0x28:
		return "gfx801"
	case 0x29:
		return "gfx802"
	case 0x2a:
		return "gfx803"
	case 0x2b:
		return "gfx810"
	case 0x2c:
		return "gfx900"
	case 0x2d:
		return "gfx902"
	case 0x2e:
		return "gfx904"
	case 0x2f:
		return "gfx906"
	case 0x30:
		return "gfx908"
	case 0x31:
		return "gfx909"
	case 0x32:
		return "gfx90c"
	case 0x33:
		return "gfx1010"
	case 0x34:
		return "gfx1011"
	case 0x35:
		return "gfx1012"
	case 0x36:
		return "gfx1030"
	case 0x37:
		return "gfx1031"
	case 0x38:
		return "gfx1032"
	case 0x39:
		return "gfx1033"
	case 0x3c:
		return "gfx805"
	case 0x3d:
		return "gfx1035"
	case 0x3e:
		return "gfx1034"
	case 0x3f:
		return "gfx90a"
	case 0x40:
		return "gfx940"
	case 0x41:
		return "gfx1100"
	case 0x42:
		return "gfx1013"
	case 0x43:
		return "gfx1150"
	case 0x44:
		return "gfx1103"
	case 0x45:
		return "gfx1036"
	case 0x46:
		return "gfx1101"
	case 0x47:
		return "gfx1102"
	case 0x48:
		return "gfx1200"
	case 0x49:
		return "gfx1250"
	case 0x4a:
		return "gfx1151"
	case 0x4b:
		return "gfx941"
	case 0x4c:
		return "gfx942"
	case 0x4e:
		return "gfx1201"
	case 0x4f:
		return "gfx950"
	case 0x51:
		return "gfx9-generic"
	case 0x52:
		return "gfx10-1-generic"
	case 0x53:
		return "gfx10-3-generic"
	case 0x54:
		return "gfx11-generic"
	case 0x55:
		return "gfx1152"
	case 0x58:
		return "gfx1153"
	case 0x59:
		return "gfx12-generic"
	case 0x5f:
		return "gfx9-4-generic"
	}
	return ""
}

// targetOfFlags reads e_flags of a code object, version 4 or newer (ABI byte 2 and up); version 3 has one bit for each
// feature. ok is false for an unknown processor.
func targetOfFlags(flags uint32, abi byte) (t Target, ok bool) {
	t.Processor = processorOf(flags & 0xff)
	if abi < 2 {
		if flags&0x100 != 0 {
			t.XNACK = On
		}
		if flags&0x200 != 0 {
			t.SRAMECC = On
		}
		return t, t.Processor != ""
	}
	t.XNACK, t.SRAMECC = featureOf(flags>>8&3), featureOf(flags>>10&3)
	return t, t.Processor != ""
}

// featureOf reads a two-bit field: 0 unsupported, 1 any, 2 off, 3 on.
func featureOf(bits uint32) Feature {
	switch bits {
	case 2:
		return Off
	case 3:
		return On
	}
	return Any
}

// noteTarget finds the target in the metadata note of a code object: the msgpack string after the key "amdhsa.target",
// "amdgcn-amd-amdhsa--gfx1100". ok is false when there is none.
func noteTarget(note []byte) (t Target, ok bool) {
	const typeMetadata = 32
	le := binary.LittleEndian
	for len(note) >= 12 {
		nameLen, descLen, kind := uint64(le.Uint32(note)), uint64(le.Uint32(note[4:])), le.Uint32(note[8:])
		desc := 12 + align(nameLen, 4)
		end := desc + align(descLen, 4)
		if end > uint64(len(note)) || desc+descLen > uint64(len(note)) {
			return Target{}, false
		}
		if kind == typeMetadata && bytes.HasPrefix(note[12:desc], []byte("AMDGPU\x00")) {
			return metadataTarget(note[desc : desc+descLen])
		}
		note = note[end:]
	}
	return Target{}, false
}

func metadataTarget(metadata []byte) (Target, bool) {
	_, rest, found := bytes.Cut(metadata, []byte("amdhsa.target"))
	if !found || len(rest) == 0 {
		return Target{}, false
	}
	var n int
	switch lead := rest[0]; {
	case lead&0xe0 == 0xa0: // fixstr
		n, rest = int(lead&0x1f), rest[1:]
	case lead == 0xd9 && len(rest) >= 2: // str 8
		n, rest = int(rest[1]), rest[2:]
	default:
		return Target{}, false
	}
	if n > len(rest) {
		return Target{}, false
	}
	t, ok, err := entryTarget(string(rest[:n]))
	return t, ok && err == nil
}

func align(n, to uint64) uint64 { return (n + to - 1) / to * to }
