package toygguf

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
)

// GGUF value types and file constants (GGUF specification, version 3).
const (
	typeU32    = 4
	typeI32    = 5
	typeF32    = 6
	typeBool   = 7
	typeString = 8
	typeArray  = 9

	ggufMagic   = 0x46554747 // "GGUF", little endian
	ggufVersion = 3
	alignment   = 32 // bytes; general.alignment's default
	ggmlF32     = 0
)

// Write writes the toy s describes to path, replacing what is there. It
// returns an error wrapping ErrSpec for an impossible spec, or the file
// system's error.
func Write(path string, s Spec) error {
	s, err := s.withDefaults()
	if err != nil {
		return err
	}
	return writeFile(path, func(w io.Writer) error {
		return encode(w, metadata(s), tensors(s), s.Seed)
	})
}

// WriteLoRA writes a LoRA adapter of the given rank for the toy s, touching
// the query matrix of every attention layer. A scale of 0 makes it a no-op.
// It returns an error wrapping ErrSpec for a kind without attention or an
// impossible rank.
func WriteLoRA(path string, s Spec, rank int, seed uint64, scale float32) error {
	s, err := s.withDefaults()
	if err != nil {
		return err
	}
	if rank <= 0 || s.Kind == Mamba || s.Kind == Bert {
		return fmt.Errorf("%w: adapter of rank %d for %q", ErrSpec, rank, s.Kind)
	}
	kv := &meta{}
	kv.str("general.architecture", string(s.Kind))
	kv.str("general.type", "adapter")
	kv.str("adapter.type", "lora")
	kv.f32("adapter.lora.alpha", float32(rank))
	b := &builder{}
	for i := range s.Layers {
		if s.Kind == Jamba && i%2 == 0 {
			continue
		}
		name := "blk." + strconv.Itoa(i) + ".attn_q.weight"
		b.add(random, 1, name+".lora_a", s.Embd, rank)
		b.add(random, scale, name+".lora_b", rank, s.Embd)
	}
	return writeFile(path, func(w io.Writer) error {
		return encode(w, kv, b.list, seed)
	})
}

func writeFile(path string, enc func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("toygguf: %w", err)
	}
	w := bufio.NewWriterSize(f, 1<<16)
	err = enc(w)
	if err == nil {
		err = w.Flush()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("toygguf: write %s: %w", path, err)
	}
	return nil
}

// meta is the encoded key/value section.
type meta struct {
	buf bytes.Buffer
	n   uint64
}

var le = binary.LittleEndian

func (m *meta) key(k string, typ uint32) {
	m.n++
	putString(&m.buf, k)
	putU32(&m.buf, typ)
}

func (m *meta) str(k, v string)         { m.key(k, typeString); putString(&m.buf, v) }
func (m *meta) u32(k string, v int)     { m.key(k, typeU32); putU32(&m.buf, uint32(v)) }
func (m *meta) f32(k string, v float32) { m.key(k, typeF32); putU32(&m.buf, math.Float32bits(v)) }
func (m *meta) array(k string, typ uint32, n int) {
	m.key(k, typeArray)
	putU32(&m.buf, typ)
	putU64(&m.buf, uint64(n))
}

func (m *meta) boolean(k string, v bool) {
	m.key(k, typeBool)
	if v {
		m.buf.WriteByte(1)
		return
	}
	m.buf.WriteByte(0)
}

func (m *meta) i32s(k string, vs []int32) {
	m.array(k, typeI32, len(vs))
	for _, v := range vs {
		putU32(&m.buf, uint32(v))
	}
}

func putU32(b *bytes.Buffer, v uint32) { b.Write(le.AppendUint32(nil, v)) }
func putU64(b *bytes.Buffer, v uint64) { b.Write(le.AppendUint64(nil, v)) }
func putString(b *bytes.Buffer, s string) {
	putU64(b, uint64(len(s)))
	b.WriteString(s)
}

// metadata builds the keys llama.cpp asks of the architecture.
func metadata(s Spec) *meta {
	m := &meta{}
	a := string(s.Kind) + "."
	m.str("general.architecture", string(s.Kind))
	m.str("general.name", s.Name)
	m.u32(a+"context_length", s.Context)
	m.u32(a+"embedding_length", s.Embd)
	m.u32(a+"block_count", s.Layers)
	if s.Kind != Mamba {
		m.u32(a+"feed_forward_length", s.FF)
		m.u32(a+"attention.head_count", s.Heads)
	}
	switch s.Kind {
	case Jamba:
		kv := make([]int32, s.Layers)
		for i := 1; i < s.Layers; i += 2 {
			kv[i] = int32(s.HeadsKV)
		}
		m.i32s(a+"attention.head_count_kv", kv)
		m.u32(a+"expert_count", 0)
		m.u32(a+"expert_used_count", 0)
	case Llama, Gemma3:
		m.u32(a+"attention.head_count_kv", s.HeadsKV)
		m.u32(a+"rope.dimension_count", s.Embd/s.Heads)
		m.f32(a+"rope.freq_base", 10000)
	}
	if s.Kind == Llama || s.Kind == Gemma3 || s.Kind == Jamba {
		m.u32(a+"attention.key_length", s.Embd/s.Heads)
		m.u32(a+"attention.value_length", s.Embd/s.Heads)
	}
	if s.Kind == Jamba || s.Kind == Mamba {
		m.u32(a+"ssm.conv_kernel", ssmConv)
		m.u32(a+"ssm.inner_size", 2*s.Embd)
		m.u32(a+"ssm.state_size", ssmState)
		m.u32(a+"ssm.time_step_rank", ssmRank)
	}
	if s.SWA != 0 && s.Kind == Gemma3 {
		m.u32(a+"attention.sliding_window", s.SWA)
	}
	if s.Kind == Bert {
		m.f32(a+"attention.layer_norm_epsilon", 1e-5)
		m.boolean(a+"attention.causal", false)
		m.u32(a+"pooling_type", s.Pooling)
	} else {
		m.f32(a+"attention.layer_norm_rms_epsilon", 1e-5)
	}
	tokenizer(m, s)
	for _, k := range slices.Sorted(maps.Keys(s.Extra)) {
		m.str(k, s.Extra[k])
	}
	return m
}

func tokenizer(m *meta, s Spec) {
	const t = "tokenizer."
	v := spmVocab(s.Vocab)
	if s.Kind == Bert {
		v = bertVocab(s.Vocab)
	}
	m.str(t+"ggml.model", v.model)
	m.array(t+"ggml.tokens", typeString, len(v.tokens))
	for _, tok := range v.tokens {
		putString(&m.buf, tok)
	}
	m.array(t+"ggml.scores", typeF32, len(v.scores))
	for _, f := range v.scores {
		putU32(&m.buf, math.Float32bits(f))
	}
	m.i32s(t+"ggml.token_type", v.types)
	if s.Kind == Bert {
		m.u32(t+"ggml.token_type_count", 2)
		m.u32(t+"ggml.bos_token_id", BertCLS)
		m.u32(t+"ggml.eos_token_id", BertSEP)
		m.u32(t+"ggml.unknown_token_id", BertUnk)
		m.u32(t+"ggml.seperator_token_id", BertSEP) // the key is spelt so
		m.u32(t+"ggml.padding_token_id", BertPad)
		m.u32(t+"ggml.cls_token_id", BertCLS)
		m.u32(t+"ggml.mask_token_id", BertMask)
		return
	}
	m.u32(t+"ggml.bos_token_id", TokenBOS)
	m.u32(t+"ggml.eos_token_id", TokenEOS)
	m.u32(t+"ggml.eot_token_id", TokenEnd)
	m.u32(t+"ggml.unknown_token_id", TokenUnk)
	m.boolean(t+"ggml.add_bos_token", true)
	m.boolean(t+"ggml.add_eos_token", false)
	if s.ChatTemplate != "-" {
		m.str(t+"chat_template", s.ChatTemplate)
	}
}

// encode writes header, metadata, tensor table and data.
func encode(w io.Writer, kv *meta, list []tensor, seed uint64) error {
	var head bytes.Buffer
	putU32(&head, ggufMagic)
	putU32(&head, ggufVersion)
	putU64(&head, uint64(len(list)))
	putU64(&head, kv.n)
	head.Write(kv.buf.Bytes())
	off := 0
	for _, t := range list {
		putString(&head, t.name)
		putU32(&head, uint32(len(t.dims)))
		for _, d := range t.dims {
			putU64(&head, uint64(d))
		}
		putU32(&head, ggmlF32)
		putU64(&head, uint64(off))
		off += align(4 * t.elems())
	}
	head.Write(make([]byte, align(head.Len())-head.Len()))
	if _, err := w.Write(head.Bytes()); err != nil {
		return err
	}
	var row []byte
	for _, t := range list {
		row = row[:0]
		for _, f := range t.values(seed) {
			row = le.AppendUint32(row, math.Float32bits(f))
		}
		row = append(row, make([]byte, align(len(row))-len(row))...)
		if _, err := w.Write(row); err != nil {
			return err
		}
	}
	return nil
}

func align(n int) int { return (n + alignment - 1) / alignment * alignment }
