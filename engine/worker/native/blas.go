package native

import (
	"strings"
	"time"

	"hearth/engine"
	"hearth/engine/llama"
)

// blasShare is the most of the CPU's time that products may take through BLAS for it to be used. A little less would be within what two
// measurements differ by, and prompts are not products alone.
const blasShare = 0.9

// blasRows is from how many rows on ggml's BLAS plugin takes a product. Steps of so many sequences that all decode would go through it,
// too: they are the slower for it (32 rows: 1.0 to 1.3 times the time), and the output matrix, the largest there is, would be kept as
// floats besides (SmolLM2: 113 MB, 8B models: 2 GB).
const blasRows = 32

// blasUse is what cpu_blas says about one model.
type blasUse int

const (
	blasNo blasUse = iota
	blasMeasure
	blasYes
)

// chooseBLAS is what to do for a load order when the bundle has a BLAS plugin or none.
func chooseBLAS(s *engine.LoadSpec, plugin string) (blasUse, error) {
	switch {
	case s.Backend != "cpu" || s.CPUBLAS == "off":
		return blasNo, nil
	case plugin == "" && s.CPUBLAS == "on":
		return blasNo, &engine.Error{
			Kind: engine.KindUnavailable, Field: "cpu_blas", Message: "cpu_blas is on, and this engine has no BLAS plugin",
			Hint: "build the bundle with it (docs/engine-bundle.md), or set cpu_blas to auto",
		}
	case plugin == "":
		return blasNo, nil
	case s.CPUBLAS == "on":
		return blasYes, nil
	case s.MaxSequences >= blasRows && (s.Mode == "" || s.Mode == "chat"):
		return blasNo, nil
	}
	return blasMeasure, nil
}

// fewerThanBLAS keeps steps in which all sequences decode below what BLAS takes, unless their number was asked for.
func (z *sizes) fewerThanBLAS(s *engine.LoadSpec) {
	if s.MaxSequences > 0 || z.sequences < blasRows {
		return
	}
	z.setSequences(blasRows - 1)
}

// prepareBLAS gives the context that is made next BLAS for prompts, where that is wanted and, unless it is demanded, faster. It
// computes: threads is what the context will have.
func (m *model) prepareBLAS(threads int) (used bool, err error) {
	use, err := chooseBLAS(&m.spec, m.blas)
	if err != nil {
		return false, err
	}
	if use == blasMeasure && m.measureBLAS(threads) {
		use = blasYes
	}
	if use != blasYes {
		return false, nil
	}
	err = m.rt.LoadBLAS(m.blas)
	switch {
	case err == nil:
		m.log.Info("prompts of 32 rows or more go through BLAS", "cpu_blas", m.spec.CPUBLAS)
		return true, nil
	case m.spec.CPUBLAS == "on":
		return false, &engine.Error{Kind: engine.KindUnavailable, Field: "cpu_blas", Message: "the BLAS plugin cannot be loaded", Cause: err}
	default:
		m.log.Warn("the BLAS plugin cannot be loaded, prompts go without", "err", err)
		return false, nil
	}
}

// measureBLAS says whether BLAS is enough faster for this model.
func (m *model) measureBLAS(threads int) bool {
	began := time.Now()
	gain, err := m.rt.MeasureBLAS(m.blas, m.spec.Path, threads)
	if err != nil {
		m.log.Warn("BLAS cannot be measured, prompts go without", "err", err)
		return false
	}
	if gain.Shapes == 0 {
		m.log.Info("prompts go without BLAS: the CPU keeps all of the model's weights in buffers of its own", "took", time.Since(began))
		return false
	}
	m.log.Info("measured BLAS for prompts", "use", worthBLAS(gain), "share_of_cpu_time", gain.Share(), "cpu", gain.CPU, "blas", gain.BLAS,
		"types", strings.Join(gain.Types, " "), "shapes", gain.Shapes, "measured", gain.Measured, "buffer_bytes", gain.Buffer,
		"took", time.Since(began))
	return worthBLAS(gain)
}

func worthBLAS(g llama.BLASGain) bool { return g.Measured > 0 && g.Share() <= blasShare }
