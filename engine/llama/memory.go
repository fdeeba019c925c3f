package llama

// #include "shim.h"
import "C"

import "fmt"

// memOp claims the context for a memory call on the given sequence ids.
func (c *Context) memOp(op string, seqs ...SeqID) error {
	if err := c.enter(op); err != nil {
		return err
	}
	var err error
	if !c.HasMemory() {
		err = fail(op, ErrUnsupported, "the model has no KV memory")
	}
	for _, s := range seqs {
		if s < 0 || s >= c.maxSeq {
			err = fail(op, ErrRange, fmt.Sprintf("sequence %d of %d", s, c.maxSeq))
		}
	}
	if err != nil {
		c.yield()
	}
	return err
}

// Clear forgets every sequence; data also zeroes the buffers.
func (c *Context) Clear(data bool) error {
	if err := c.memOp("clear"); err != nil {
		return err
	}
	defer c.yield()
	clear(c.onDevice)
	return shimError("clear", ErrException, C.hs_mem_clear(c.h, C.bool(data), c.err), c.err)
}

// SeqRm drops the positions [p0, p1) of a sequence; a negative p0 means 0, a
// negative p1 the end. Removing all of a sequence always works. Recurrent and
// hybrid memories return ErrPartial, unchanged, when asked for a part they
// cannot drop. Costs a scan of all cells: 32 us per 32k cells measured.
func (c *Context) SeqRm(seq SeqID, p0, p1 Pos) error {
	if err := c.memOp("seq_rm", seq); err != nil {
		return err
	}
	defer c.yield()
	var removed C.bool
	if rc := C.hs_seq_rm(c.h, C.int32_t(seq), C.int32_t(p0), C.int32_t(p1), &removed, c.err); rc != C.HS_OK {
		return shimError("seq_rm", ErrException, rc, c.err)
	}
	if !removed {
		return fail("seq_rm", ErrPartial, fmt.Sprintf("sequence %d [%d,%d)", seq, p0, p1))
	}
	return nil
}

// SeqCp makes dst share the positions [p0, p1) of src. In a unified memory it
// only marks cells, in any range; dst is merged into, so clear it first. With
// separate streams it copies the whole buffer, at the next decode, and takes
// whole sequences only (p0 and p1 negative). Recurrent state is copied whole
// whatever the range. Errors: ErrRange for equal or unknown ids,
// ErrUnsupported for a part of a stream.
func (c *Context) SeqCp(src, dst SeqID, p0, p1 Pos) error {
	if err := c.memOp("seq_cp", src, dst); err != nil {
		return err
	}
	defer c.yield()
	if src == dst {
		return fail("seq_cp", ErrRange, "source and destination are the same")
	}
	if !c.par.KVUnified && (p0 > 0 || p1 >= 0) && !c.m.info.Recurrent {
		return fail("seq_cp", ErrUnsupported, "streams copy whole sequences only")
	}
	rc := C.hs_seq_cp(c.h, C.int32_t(src), C.int32_t(dst), C.int32_t(p0), C.int32_t(p1), c.err)
	return shimError("seq_cp", ErrException, rc, c.err)
}

// SeqKeep forgets every sequence but one.
func (c *Context) SeqKeep(seq SeqID) error {
	if err := c.memOp("seq_keep", seq); err != nil {
		return err
	}
	defer c.yield()
	return shimError("seq_keep", ErrException, C.hs_seq_keep(c.h, C.int32_t(seq), c.err), c.err)
}

// SeqAdd moves the positions [p0, p1) of a sequence by delta, for every
// sequence that shares those cells, and re-rotates their keys at the next
// decode. Errors: ErrUnsupported where CanShift is false.
func (c *Context) SeqAdd(seq SeqID, p0, p1, delta Pos) error {
	if err := c.memOp("seq_add", seq); err != nil {
		return err
	}
	defer c.yield()
	if !c.CanShift() {
		return fail("seq_add", ErrUnsupported, "the memory cannot shift")
	}
	rc := C.hs_seq_add(c.h, C.int32_t(seq), C.int32_t(p0), C.int32_t(p1), C.int32_t(delta), c.err)
	return shimError("seq_add", ErrException, rc, c.err)
}

// PosMin is the smallest position a sequence holds: every position from there
// to PosMax is present. -1 when it is empty or unknown. With a sliding window it
// moves up as the window passes.
func (c *Context) PosMin(seq SeqID) Pos {
	if c.memOp("pos_min", seq) != nil {
		return -1
	}
	defer c.yield()
	return Pos(C.hs_pos_min(c.h, C.int32_t(seq)))
}

// PosMax is the largest position a sequence holds, -1 when it is empty or unknown.
func (c *Context) PosMax(seq SeqID) Pos {
	if c.memOp("pos_max", seq) != nil {
		return -1
	}
	defer c.yield()
	return Pos(C.hs_pos_max(c.h, C.int32_t(seq)))
}

// StateFlags select what a sequence state holds and where it lives.
type StateFlags uint32

// Flags of llama_state_seq_flags.
const (
	// StatePartial takes only the part that SeqRm cannot bring back: the
	// sliding-window or recurrent part.
	StatePartial StateFlags = 1
	// StateOnDevice leaves the tensors in device memory, one snapshot per
	// sequence; the blob is then only its receipt.
	StateOnDevice StateFlags = 2
)

// SeqStateSize returns the bytes SeqStateGet needs.
func (c *Context) SeqStateSize(seq SeqID, flags StateFlags) (int, error) {
	if err := c.memOp("state size", seq); err != nil {
		return 0, err
	}
	defer c.yield()
	var n C.size_t
	rc := C.hs_state_size(c.h, C.int32_t(seq), C.uint32_t(flags), &n, c.err)
	return int(n), shimError("state size", ErrState, rc, c.err)
}

// SeqStateGet copies a sequence's state into dst and returns the bytes used.
// Errors: ErrState (dst too small, nothing to save), ErrRange.
func (c *Context) SeqStateGet(dst []byte, seq SeqID, flags StateFlags) (int, error) {
	if len(dst) == 0 {
		return 0, fail("state get", ErrState, "empty buffer")
	}
	if err := c.memOp("state get", seq); err != nil {
		return 0, err
	}
	defer c.yield()
	var n C.size_t
	rc := C.hs_state_get(c.h, C.int32_t(seq), C.uint32_t(flags), (*C.uint8_t)(&dst[0]), C.size_t(len(dst)), &n, c.err)
	if rc == C.HS_OK && flags&StateOnDevice != 0 {
		c.onDevice[seq] = true
	}
	return int(n), shimError("state get", ErrState, rc, c.err)
}

// SeqStateSet replaces a sequence's content by a saved state; on failure the
// sequence is left empty. The blob must come from a context with the same model,
// KV types, layout and flash attention. Errors: ErrState (no room, or a blob
// that does not fit), ErrRange for ids that cannot be decoded and for an
// on-device blob whose snapshot this context does not hold.
func (c *Context) SeqStateSet(src []byte, seq SeqID, flags StateFlags) error {
	if len(src) < stateHeader {
		return fail("state set", ErrState, "blob too short")
	}
	if err := c.memOp("state set", seq); err != nil {
		return err
	}
	defer c.yield()
	switch {
	case seq >= SeqID(c.info.n_seq_max):
		return fail("state set", ErrRange, "parking ids cannot be restored to")
	case flags&StateOnDevice != 0 && !c.onDevice[seq]:
		return fail("state set", ErrRange, "no snapshot of this sequence was taken")
	}
	var n C.size_t
	rc := C.hs_state_set(c.h, C.int32_t(seq), C.uint32_t(flags), (*C.uint8_t)(&src[0]), C.size_t(len(src)), &n, c.err)
	if err := shimError("state set", ErrState, rc, c.err); err != nil {
		return err
	}
	if int(n) != len(src) {
		return fail("state set", ErrState, fmt.Sprintf("blob of %d bytes, %d used", len(src), int(n)))
	}
	return nil
}

// stateHeader is the least a state blob can hold, in bytes: magic and counts.
const stateHeader = 8
