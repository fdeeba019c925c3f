package llama_test

import (
	"errors"
	"testing"

	"hearth/engine/llama"
)

func TestGemmAgreesWithTheCPU(t *testing.T) {
	devices, err := rt.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if d.Type == llama.DeviceAccel {
			continue
		}
		for _, c := range llama.GemmCases() {
			res, err := rt.Gemm(d.Name, c)
			if err != nil || !res.OK || res.Took <= 0 {
				t.Errorf("%s %s: %+v %v", d.Name, c, res, err)
			}
			t.Logf("%s %s: error %.1e, %s", d.Name, c, res.MaxError, res.Took)
		}
	}
	if _, err := rt.Gemm("Nothing7", llama.GemmF16); !errors.Is(err, llama.ErrRange) {
		t.Errorf("an unknown device: %v", err)
	}
	if _, err := rt.Gemm("CPU", "f12"); !errors.Is(err, llama.ErrRange) {
		t.Errorf("an unknown case: %v", err)
	}
}
