package toygguf

import (
	"math"
	"math/rand/v2"
	"strconv"
)

// fill says what a tensor's elements are.
type fill int

const (
	random fill = iota // normal, scaled by 1/sqrt(fan in)
	ones
	small // normal * 0.1, for biases
	minus // -1, the decay of a state-space layer
)

// tensor is one F32 tensor; dims are in GGUF order, fastest first.
type tensor struct {
	name  string
	dims  []int
	fill  fill
	scale float32
}

func (t tensor) elems() int {
	n := 1
	for _, d := range t.dims {
		n *= d
	}
	return n
}

// values computes the elements; the stream depends on seed and name only.
func (t tensor) values(seed uint64) []float32 {
	v := make([]float32, t.elems())
	switch t.fill {
	case ones:
		for i := range v {
			v[i] = 1
		}
		return v
	case minus:
		for i := range v {
			v[i] = -1
		}
		return v
	}
	h := uint64(14695981039346656037) // FNV-1a of the name
	for i := range len(t.name) {
		h = (h ^ uint64(t.name[i])) * 1099511628211
	}
	rng := rand.New(rand.NewPCG(seed, h))
	k := float32(0.1)
	if t.fill == random {
		k = float32(1/math.Sqrt(float64(t.dims[0]))) * t.scale
	}
	for i := range v {
		v[i] = float32(rng.NormFloat64()) * k
	}
	return v
}

// builder collects tensors in file order.
type builder struct{ list []tensor }

func (b *builder) add(f fill, scale float32, name string, dims ...int) {
	b.list = append(b.list, tensor{name: name, dims: dims, fill: f, scale: scale})
}

func (b *builder) mat(name string, in, out int)   { b.add(random, 1, name+".weight", in, out) }
func (b *builder) norm(name string, n int)        { b.add(ones, 1, name+".weight", n) }
func (b *builder) bias(name string, n int)        { b.add(small, 1, name+".bias", n) }
func (b *builder) dense(name string, in, out int) { b.mat(name, in, out); b.bias(name, out) }

func tensors(s Spec) []tensor {
	b := &builder{}
	// Embeddings are of unit scale so that the first norm has something to divide.
	b.add(random, float32(math.Sqrt(float64(s.Embd))), "token_embd.weight", s.Embd, s.Vocab)
	if s.Kind == Bert {
		bertTensors(b, s)
		return b.list
	}
	b.norm("output_norm", s.Embd)
	if s.Kind != Gemma3 { // Gemma ties its output to the embedding
		b.add(random, 4*s.LogitScale, "output.weight", s.Embd, s.Vocab)
	}
	for i := range s.Layers {
		p := "blk." + strconv.Itoa(i) + "."
		b.norm(p+"attn_norm", s.Embd)
		if s.Kind == Mamba {
			ssmTensors(b, s, p, false)
			continue
		}
		if s.Kind == Jamba && i%2 == 0 {
			ssmTensors(b, s, p, true)
		} else {
			attnTensors(b, s, p)
		}
		if s.Kind == Gemma3 {
			b.norm(p+"post_attention_norm", s.Embd)
			b.norm(p+"post_ffw_norm", s.Embd)
		}
		b.norm(p+"ffn_norm", s.Embd)
		b.mat(p+"ffn_gate", s.Embd, s.FF)
		b.mat(p+"ffn_up", s.Embd, s.FF)
		b.mat(p+"ffn_down", s.FF, s.Embd)
	}
	return b.list
}

func attnTensors(b *builder, s Spec, p string) {
	d := s.Embd / s.Heads
	b.mat(p+"attn_q", s.Embd, s.Embd)
	b.mat(p+"attn_k", s.Embd, s.HeadsKV*d)
	b.mat(p+"attn_v", s.Embd, s.HeadsKV*d)
	b.mat(p+"attn_output", s.Embd, s.Embd)
	if s.Kind == Gemma3 {
		b.norm(p+"attn_q_norm", d)
		b.norm(p+"attn_k_norm", d)
	}
}

// State-space sizes, shared with the metadata.
const (
	ssmConv  = 4
	ssmState = 16
	ssmRank  = 8
)

func ssmTensors(b *builder, s Spec, p string, norms bool) {
	in := 2 * s.Embd
	b.mat(p+"ssm_in", s.Embd, 2*in)
	b.mat(p+"ssm_conv1d", ssmConv, in)
	b.bias(p+"ssm_conv1d", in)
	b.mat(p+"ssm_x", in, ssmRank+2*ssmState)
	if norms { // Jamba normalises what Mamba uses raw
		b.norm(p+"ssm_dt_norm", ssmRank)
		b.norm(p+"ssm_b_norm", ssmState)
		b.norm(p+"ssm_c_norm", ssmState)
	}
	b.dense(p+"ssm_dt", ssmRank, in)
	b.add(minus, 1, p+"ssm_a", ssmState, in)
	b.add(small, 1, p+"ssm_d", in)
	b.mat(p+"ssm_out", in, s.Embd)
}

func bertTensors(b *builder, s Spec) {
	normBias := func(name string) { b.norm(name, s.Embd); b.bias(name, s.Embd) }
	b.mat("position_embd", s.Embd, s.Context)
	b.mat("token_types", s.Embd, 2)
	normBias("token_embd_norm")
	for i := range s.Layers {
		p := "blk." + strconv.Itoa(i) + "."
		b.dense(p+"attn_q", s.Embd, s.Embd)
		b.dense(p+"attn_k", s.Embd, s.Embd)
		b.dense(p+"attn_v", s.Embd, s.Embd)
		b.dense(p+"attn_output", s.Embd, s.Embd)
		normBias(p + "attn_output_norm")
		b.dense(p+"ffn_up", s.Embd, s.FF)
		b.dense(p+"ffn_down", s.FF, s.Embd)
		normBias(p + "layer_output_norm")
	}
	if s.Pooling == PoolingRank {
		b.dense("cls", s.Embd, s.Embd)
		b.dense("cls.output", s.Embd, 1)
	}
}
