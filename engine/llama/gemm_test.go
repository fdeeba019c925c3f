package llama_test

import (
	"errors"
	"testing"

	"hearth/engine/llama"
)

func TestGemmOnTheCPU(t *testing.T) {
	for _, typ := range []string{"f32", "f16", "q4_K", "q8_0"} {
		g, err := rt.Gemm("CPU", typ)
		if err != nil || !g.OK() || g.Took <= 0 {
			t.Errorf("%s: %+v, %v", typ, g, err)
		}
		t.Logf("%s: relative error %.5f in %v", typ, g.Error, g.Took)
	}
	for _, c := range [][2]string{{"ROCm9", "f32"}, {"CPU", "f33"}, {"CPU", ""}, {"CPU", "i32"}, {"CPU", "iq2_xxs"}} {
		if _, err := rt.Gemm(c[0], c[1]); !errors.Is(err, llama.ErrRange) {
			t.Errorf("%v: %v", c, err)
		}
	}
	if (llama.Gemm{Error: 0.5}).OK() {
		t.Error("a wrong product is called right")
	}
}
