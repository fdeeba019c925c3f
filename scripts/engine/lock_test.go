package main

import (
	"slices"
	"strings"
	"testing"

	"hearth/scripts/engine/debian"
)

// TestLockedBLAS: bundles have OpenBLAS with OpenMP and no other BLAS, and llama-server, which Debian does not give one by
// itself, is compared without.
func TestLockedBLAS(t *testing.T) {
	lock, err := debian.LoadLock("../../engine.lock")
	if err != nil {
		t.Fatal(err)
	}
	blas := func(set string) (names []string) {
		for _, p := range lock.Sets[set].Packages {
			if strings.Contains(p.Name, "blas") && !strings.Contains(p.Name, "rocblas") && !strings.Contains(p.Name, "hipblas") || strings.Contains(p.Name, "blis") {
				names = append(names, p.Name)
			}
		}
		return names
	}
	if got, want := blas("base"), []string{"libggml0-backend-blas", "libopenblas0-openmp"}; !slices.Equal(got, want) {
		t.Errorf("the base set has %q, want %q", got, want)
	}
	for _, set := range []string{"peers", "hip", "mesa"} {
		if got := blas(set); len(got) > 0 {
			t.Errorf("set %s has %q", set, got)
		}
	}
	if !lock.Accepts("libggml0-backend-blas", "0.27.3-1") || lock.Accepts("libggml0-backend-blas", "0.28.0-1") {
		t.Error("the BLAS plugin may be of another version than ggml")
	}
}
