package llama

// #include <stdlib.h>
// #include "sampler.h"
import "C"

import (
	"fmt"
	"math"
	"unsafe"
)

// ChainParams ask for samplers that only llama.cpp's own chain has. They run
// after bias and penalties, in the order DRY, top-n-sigma, top-k, typical,
// top-p, min-p, XTC, temperature (TopK, TopP, MinP and Temperature come from
// SampleParams). A chain costs about 0.1 to 1 ms a row at 150k tokens where the
// kernel costs 20 us.
type ChainParams struct {
	DRYMultiplier    float32 // 0 = off
	DRYBase          float32 // > 1 with DRY on; commonly 1.75
	DRYAllowedLength int     // longest repeat without penalty; commonly 2
	DRYLastN         int     // tokens looked at; 0 = off, negative = the context
	DRYBreakers      []string

	TopNSigma      float32 // 0 = off
	Typical        float32 // locally typical mass; 0 or 1 = off
	XTCProbability float32 // 0 = off
	XTCThreshold   float32
	MinKeep        int     // least number of candidates that typical, top-p, min-p and XTC leave; 0 = 1
	DynaRange      float32 // temperature moves within +- this; 0 = off
	DynaExponent   float32 // 0 = 1

	Mirostat    int     // 0, 1 or 2; takes the place of all but DRY and temperature
	MirostatTau float32 // target surprise in nats; commonly 5
	MirostatEta float32 // learning rate; commonly 0.1
}

// Bounds of a DRY setting: what a client may make the worker allocate.
const (
	maxBreakers     = 64
	maxBreakerBytes = 256
)

func (c *ChainParams) validate() error {
	bad := func(field string, v any) error {
		return fail("sample params", ErrRange, fmt.Sprintf("%s = %v", field, v))
	}
	unit := func(f float32) bool { return f >= 0 && f <= 1 }
	nonneg := func(f float32) bool { return f >= 0 && !math.IsInf(float64(f), 0) }
	switch {
	case !nonneg(c.DRYMultiplier):
		return bad("DRYMultiplier", c.DRYMultiplier)
	case c.DRYMultiplier > 0 && !(c.DRYBase >= 1 && nonneg(c.DRYBase)):
		return bad("DRYBase", c.DRYBase)
	case c.DRYAllowedLength < 0 || c.DRYAllowedLength > math.MaxInt32:
		return bad("DRYAllowedLength", c.DRYAllowedLength)
	case c.DRYLastN > 1<<20 || c.DRYLastN < -1:
		return bad("DRYLastN", c.DRYLastN)
	case len(c.DRYBreakers) > maxBreakers:
		return bad("DRYBreakers", fmt.Sprint(len(c.DRYBreakers), " strings"))
	case !nonneg(c.TopNSigma):
		return bad("TopNSigma", c.TopNSigma)
	case !unit(c.Typical):
		return bad("Typical", c.Typical)
	case !unit(c.XTCProbability):
		return bad("XTCProbability", c.XTCProbability)
	case !nonneg(c.XTCThreshold):
		return bad("XTCThreshold", c.XTCThreshold)
	case c.MinKeep < 0 || c.MinKeep > math.MaxInt32:
		return bad("MinKeep", c.MinKeep)
	case !nonneg(c.DynaRange):
		return bad("DynaRange", c.DynaRange)
	case !nonneg(c.DynaExponent):
		return bad("DynaExponent", c.DynaExponent)
	case c.Mirostat < 0 || c.Mirostat > 2:
		return bad("Mirostat", c.Mirostat)
	case c.Mirostat > 0 && !(c.MirostatTau > 0 && nonneg(c.MirostatTau)):
		return bad("MirostatTau", c.MirostatTau)
	case c.Mirostat > 0 && !nonneg(c.MirostatEta):
		return bad("MirostatEta", c.MirostatEta)
	}
	for _, b := range c.DRYBreakers {
		if b == "" || len(b) > maxBreakerBytes {
			return bad("DRYBreakers", fmt.Sprintf("%.20q", b))
		}
	}
	return nil
}

// mirostatM is the number of tokens Mirostat 1 fits its exponent to, as in its paper.
const mirostatM = 100

func newChain(m *Model, p SampleParams) (*C.hs_chain, error) {
	c := p.Chain
	lastN := c.DRYLastN
	if lastN < 0 {
		lastN = min(m.info.CtxTrain, 1<<20)
	}
	typical, exponent := c.Typical, c.DynaExponent
	if typical == 0 {
		typical = 1
	}
	if exponent == 0 {
		exponent = 1
	}
	cp := C.hs_chain_params{
		dry_multiplier: C.float(c.DRYMultiplier), dry_base: C.float(c.DRYBase),
		dry_allowed_length: C.int32_t(c.DRYAllowedLength), dry_last_n: C.int32_t(lastN),
		top_n_sigma: C.float(c.TopNSigma), top_k: C.int32_t(p.TopK), typical_p: C.float(typical),
		top_p: C.float(p.TopP), min_p: C.float(p.MinP),
		xtc_probability: C.float(c.XTCProbability), xtc_threshold: C.float(c.XTCThreshold),
		min_keep: C.int32_t(max(1, c.MinKeep)),
		temp:     C.float(p.Temperature), dyna_range: C.float(c.DynaRange), dyna_exponent: C.float(exponent),
		mirostat: C.int32_t(c.Mirostat), mirostat_tau: C.float(c.MirostatTau), mirostat_eta: C.float(c.MirostatEta),
		mirostat_m: mirostatM, seed: C.uint64_t(p.Seed),
	}
	breakers := cStrings(c.DRYBreakers)
	defer breakers.free()
	cp.dry_breakers, cp.n_dry_breakers = breakers.list, C.int32_t(len(c.DRYBreakers))
	var h *C.hs_chain
	var e C.hs_err
	if rc := C.hs_chain_new(m.h, &cp, &h, &e); rc != C.HS_OK {
		return nil, shimError("new chain", ErrUnsupported, rc, &e)
	}
	return h, nil
}

// stringArray is a C array of C strings, lent for one call.
type stringArray struct {
	list **C.char
	n    int
}

func cStrings(s []string) stringArray {
	if len(s) == 0 {
		return stringArray{}
	}
	a := stringArray{(**C.char)(C.malloc(C.size_t(len(s)) * C.size_t(unsafe.Sizeof((*C.char)(nil))))), len(s)}
	for i, v := range s {
		unsafe.Slice(a.list, a.n)[i] = C.CString(v)
	}
	return a
}

func (a stringArray) free() {
	for _, p := range unsafe.Slice(a.list, a.n) {
		C.free(unsafe.Pointer(p))
	}
	C.free(unsafe.Pointer(a.list))
}
