package probe

import (
	"strings"
	"testing"
)

const healthy = `{"schema":1,"event":"start","pid":7,"plugin":"/x/libggml-hip.so","llama_version":"0.7.0","ggml_version":"0.27.0"}
{"event":"loaded","registry":"ROCm"}
{"event":"device","device":{"index":0,"name":"ROCm0","description":"AMD Radeon RX 7900 XTX","type":"gpu","pci_id":"0000:03:00.0","memory_free":25743552512,"memory_total":25753026560,"caps":{"async":true,"host_buffer":true,"buffer_from_host_ptr":false,"events":true}}}
{"event":"gemm","device":"ROCm0","case":"f16","state":"start"}
{"event":"gemm","device":"ROCm0","case":"f16","state":"done","ok":true,"max_error":0.0004,"ms":1.9}
{"event":"done"}
`

func TestParseHealthyTranscript(t *testing.T) {
	r := interpret([]byte(healthy), "")
	if !r.OK() || r.Why() != "" {
		t.Fatalf("not OK: %s", r.Why())
	}
	d := r.Devices[0]
	if d.Name != "ROCm0" || d.PCIID != "0000:03:00.0" || d.MemoryTotal != 25753026560 || !d.Caps.Async || d.Type != "gpu" {
		t.Errorf("device: %+v", d)
	}
	if r.GGMLVersion != "0.27.0" || r.LlamaVersion != "0.7.0" || r.Registry != "ROCm" {
		t.Errorf("versions: %+v", r)
	}
}

func TestTranscriptStages(t *testing.T) {
	lines := strings.SplitAfter(healthy, "\n")
	want := []Stage{StageSpawn, StageLoad, StageEnumerate, StageEnumerate, StageGemm, StageGemm, StageDone}
	for n, stage := range want {
		r := interpret([]byte(strings.Join(lines[:n], "")), "")
		if r.Stage != stage {
			t.Errorf("after %d lines: stage %q, want %q", n, r.Stage, stage)
		}
		if r.OK() != (stage == StageDone) {
			t.Errorf("after %d lines: OK = %v", n, r.OK())
		}
	}
}

func TestTranscriptSurvivesNoise(t *testing.T) {
	noisy := "hello from a library\n{\"event\":\"later\",\"x\":1}\n{broken\n" + healthy + "{\"event\":\"gemm\",\"device\":3}\n{\"event\":\"device\",\"device\":\"ROCm0\"}\n"
	tr := parseTranscript([]byte(noisy))
	if len(tr.devices) != 1 || tr.badLines != 4 || tr.unknownEvents != 1 {
		t.Errorf("%+v", tr)
	}
}

func TestWrongResultIsNotOK(t *testing.T) {
	bad := strings.Replace(healthy, `"ok":true,"max_error":0.0004`, `"ok":false,"max_error":17`, 1)
	r := interpret([]byte(bad), "")
	if r.OK() || !strings.Contains(r.Why(), "off by 17") {
		t.Errorf("OK=%v why=%q", r.OK(), r.Why())
	}
}

func TestVulkanLine(t *testing.T) {
	out := `{"schema":1,"event":"start"}
{"event":"loaded","registry":"Vulkan"}
{"event":"device","device":{"index":0,"name":"Vulkan0","type":"igpu","pci_id":"0000:C1:00.0"}}
{"event":"done"}
`
	bare := "ggml_vulkan: 0 = Radeon 8060S Graphics (RADV GFX1151) (radv) | uma: 1 | fp16: 1 | bf16: 0 | warp size: 64 | shared memory: 65536 | int dot: 1 | matrix cores: KHR_coopmat"
	for _, log := range []string{"ggml_vulkan: Found 1 Vulkan devices:\n" + bare + "\n", `time=2026-11-30T15:00:00Z level=DEBUG msg="` + bare + `" n=1` + "\n"} {
		checkVulkanLine(t, interpret([]byte(out), log))
	}
}

func checkVulkanLine(t *testing.T, r Result) {
	t.Helper()
	d := r.Devices[0]
	if d.Driver != "radv" || d.MatrixCores != "KHR_coopmat" || !d.UMA || d.PCIID != "0000:c1:00.0" {
		t.Errorf("%+v", d)
	}
}

func FuzzTranscript(f *testing.F) {
	f.Add([]byte(healthy), "ggml_vulkan: 0 = X (Y) (radv) | uma: 1 | matrix cores: none")
	f.Add([]byte(`{"event":"device","device":{"index":-1,"name":"Vulkan0"}}`), "ggml_vulkan: -1 = X (Y)")
	f.Add([]byte("{}\n[]\nnull\n"), "")
	f.Fuzz(func(t *testing.T, out []byte, stderr string) {
		r := interpret(out, stderr)
		if r.Devices == nil || r.Findings == nil || len(r.Devices) > maxDevices {
			t.Fatalf("%+v", r)
		}
		_ = r.Why()
	})
}
