package codeobject

import (
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

const (
	ccobMagic  = "CCOB"
	methodZlib = 0
	methodZstd = 1
	// maxHead bounds what is decompressed of a bundle: magic and count, then maxEntries entries of the longest kind.
	maxHead = int64(len(bundleMagic)) + 8 + maxEntries*(24+maxIDLen)
	// maxWindow bounds the decoder's window, in bytes. Compilers use up to 2^27 with long-distance matching.
	maxWindow = 1 << 28
)

// ccobHeader is the head of a compressed bundle.
type ccobHeader struct {
	version, method uint16
	headerSize      uint64
	total           uint64 // bytes in the file, header included; 0 in version 1, which does not say
	uncompressed    uint64
}

// parseCCOB reads a compressed bundle's header from b, the first bytes of it (32 are enough).
func parseCCOB(b []byte) (ccobHeader, error) {
	le := binary.LittleEndian
	if len(b) < 8 || string(b[:4]) != ccobMagic {
		return ccobHeader{}, formatErr("no compressed bundle")
	}
	h := ccobHeader{version: le.Uint16(b[4:]), method: le.Uint16(b[6:])}
	sizes := map[uint16]uint64{1: 20, 2: 24, 3: 32}
	h.headerSize = sizes[h.version]
	switch {
	case h.headerSize == 0:
		return ccobHeader{}, formatErr("compressed bundle of version %d", h.version)
	case uint64(len(b)) < h.headerSize:
		return ccobHeader{}, formatErr("compressed bundle ends in its head")
	case h.method != methodZlib && h.method != methodZstd:
		return ccobHeader{}, formatErr("compressed bundle with method %d", h.method)
	}
	switch h.version {
	case 1:
		h.uncompressed = uint64(le.Uint32(b[8:]))
	case 2:
		h.total, h.uncompressed = uint64(le.Uint32(b[8:])), uint64(le.Uint32(b[12:]))
	case 3:
		h.total, h.uncompressed = le.Uint64(b[8:]), le.Uint64(b[16:])
	}
	if h.version > 1 && h.total < h.headerSize {
		return ccobHeader{}, formatErr("compressed bundle of %d bytes in all", h.total)
	}
	return h, nil
}

// decompressor reads the heads of compressed bundles, one after the other, with one zstd decoder.
type decompressor struct{ zstd *zstd.Decoder }

func (d *decompressor) close() {
	if d.zstd != nil {
		d.zstd.Close()
	}
}

// entries decompresses as much of the payload as the entry list needs.
func (d *decompressor) entries(h ccobHeader, payload io.Reader) ([]entry, error) {
	var plain io.Reader
	switch h.method {
	case methodZlib:
		z, err := zlib.NewReader(payload)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
		plain = z
	case methodZstd:
		if d.zstd == nil {
			// One goroutine: blocks are then decoded as they are read, not ahead.
			dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
			if err != nil {
				return nil, err
			}
			d.zstd = dec
		}
		if err := d.zstd.Reset(payload); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
		plain = d.zstd
	}
	list, err := parseBundle(io.LimitReader(plain, maxHead))
	if err != nil && !errors.Is(err, ErrFormat) {
		err = fmt.Errorf("%w: %w", ErrFormat, err) // damaged data, not a failing disk
	}
	return list, err
}
