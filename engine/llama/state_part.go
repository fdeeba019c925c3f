package llama

import (
	"encoding/binary"
	"fmt"
)

// stateMagic begins what llama_state_seq_get_data of llama.cpp 0.7.0 writes. Behind it are, all little-endian: u32 of the sequence, u32
// number of streams, and for each stream u32 number of its cells. Where that is not 0:
//
//	for each cell i32 position, u32 number of ids (1), i32 id
//	u32 whether V is transposed, u32 number of layers, two more u32 (0 in all that was seen)
//	for each layer, first of K, then of V: i32 type, u64 bytes of a row, a row for each cell
//
// The layout is the library's own affair, so the worker's self-test tries parts before any is used.
const stateMagic = 0xaf143cd8

// stateCell is the bytes of a cell's position and id.
const stateCell = 12

// StatePart appends to dst a state of cells from..to-1 of a saved sequence, counted as its state lists them: by ascending cell when it was
// saved. SeqStateSet brings a part back as a sequence of these cells alone. It is for pure attention with flash attention (V is not
// transposed). Errors: ErrState when state is another one or damaged, ErrRange when it has not these cells.
func StatePart(dst, state []byte, from, to int) ([]byte, error) {
	r := stateReader{in: state, out: dst}
	magic := r.u32()
	r.u32()
	found := false
	for streams := r.u32(); streams > 0 && !r.short; streams-- {
		n := int64(r.u32())
		if n == 0 {
			continue
		}
		if found || from < 0 || from >= to || int64(to) > n {
			return dst, fail("state part", ErrRange, fmt.Sprintf("cells %d to %d of %d", from, to, n))
		}
		found = true
		binary.LittleEndian.PutUint32(r.out[len(r.out)-4:], uint32(to-from))
		r.rows(n, stateCell, from, to)
		if r.u32() != 0 {
			return dst, fail("state part", ErrState, "V is transposed")
		}
		rows := 2 * int64(r.u32())
		r.u64()
		for ; rows > 0 && !r.short; rows-- {
			r.u32()
			r.rows(n, r.u64(), from, to)
		}
	}
	if r.short || magic != stateMagic || len(r.in) > 0 || !found {
		return dst, fail("state part", ErrState, "it is none of these, or damaged")
	}
	return r.out, nil
}

// stateReader copies what it reads from in to out; short says that in ended too early.
type stateReader struct {
	in, out []byte
	short   bool
}

func (r *stateReader) u32() uint32 { return uint32(r.number(4)) }
func (r *stateReader) u64() uint64 { return r.number(8) }

// number reads one of size bytes, 0 behind the end.
func (r *stateReader) number(size uint64) uint64 {
	var b [8]byte
	r.out = append(r.out, b[:copy(b[:], r.next(size))]...)
	return binary.LittleEndian.Uint64(b[:])
}

// rows reads n rows of size bytes and copies rows from..to-1.
func (r *stateReader) rows(n int64, size uint64, from, to int) {
	if size > uint64(len(r.in)) {
		r.short, r.in = true, nil
		return
	}
	b := r.next(uint64(n) * size)
	if !r.short {
		r.out = append(r.out, b[uint64(from)*size:uint64(to)*size]...)
	}
}

func (r *stateReader) next(n uint64) []byte {
	if n > uint64(len(r.in)) {
		r.short, r.in = true, nil
		return nil
	}
	b := r.in[:n]
	r.in = r.in[n:]
	return b
}
