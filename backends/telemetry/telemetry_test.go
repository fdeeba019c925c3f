package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"hearth/backends/fixtures"
	"hearth/backends/kfd"
	"hearth/backends/sysroot"
	"hearth/backends/telemetry"
)

var update = flag.Bool("update", false, "write the golden files")

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func sampler(t *testing.T, root sysroot.FS, logger *slog.Logger) *telemetry.Sampler {
	t.Helper()
	s, err := kfd.Read(context.Background(), root)
	if err != nil {
		t.Fatal(err)
	}
	// A loaded test machine may take long for a read; what is tested here is what is read.
	return telemetry.New(telemetry.Config{Root: root, Logger: logger, Budget: time.Minute, Limits: sysroot.Limits{Timeout: time.Minute}}, s.Cards, s.Devices(nil))
}

// TestGolden pins the readings of whole machines.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, machine := range []string{"xtx", "xtx-igpu", "strix-halo", "na-values", "gfx803-no-atomics", "rx6600-igpu", "vfio-igpu", "mi300a-2", "empty-vm"} {
		t.Run(machine, func(t *testing.T) {
			t.Parallel()
			readings := sampler(t, fixtures.Open(t, machine), quiet()).Sample(context.Background())
			for i := range readings {
				readings[i].At = time.Time{}
			}
			got, err := json.MarshalIndent(readings, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			golden := filepath.Join("testdata", machine+".json")
			if *update {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("differs from %s; look at it and run with -update:\n%s", golden, got)
			}
		})
	}
}

// live is a root whose files can be changed, or made to hang, while it is read.
type live struct {
	sysroot.FS
	mu    sync.Mutex
	files map[string]string
	hang  string // suffix
	block chan struct{}
}

func (l *live) ReadFile(name string) ([]byte, error) {
	l.mu.Lock()
	value, ok := "", false
	for suffix := range maps.Keys(l.files) {
		if strings.HasSuffix(name, suffix) {
			value, ok = l.files[suffix], true
		}
	}
	hang := l.hang != "" && strings.HasSuffix(name, l.hang)
	l.mu.Unlock()
	if hang {
		<-l.block
	}
	if ok {
		return []byte(value + "\n"), nil
	}
	return l.FS.ReadFile(name)
}

func (l *live) set(suffix, value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.files[suffix] = value
}

func TestSpill(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	root := &live{FS: fixtures.Open(t, "xtx"), files: map[string]string{}}
	s := sampler(t, root, slog.New(slog.NewTextHandler(&log, nil)))
	const total = 25753026560
	for i, c := range []struct {
		vram, gtt string
		spilled   uint64
		warnings  int
	}{
		{"1262485504", "98566144", 0, 0},
		{"25700000000", "98566144", 0, 0},            // full, nothing spilled
		{"25700000000", "298566144", 0, 0},           // below the threshold
		{"25700000000", "2098566144", 2000000000, 1}, // spills
		{"25700000000", "3098566144", 3000000000, 1}, // still does: one warning
		{"20000000000", "3098566144", 0, 1},          // GTT for another reason: VRAM has room
		{"25700000000", "1098566144", 1000000000, 2}, // again
		{"25700000000", "50000000", 0, 2},            // a new low
		{"25700000000", "319000000", 269000000, 3},   // counted from the new low
		{"N/A", "319000000", 0, 3},                   // unknown: neither alarm nor all-clear
	} {
		root.set("mem_info_vram_used", c.vram)
		root.set("mem_info_gtt_used", c.gtt)
		r := s.Sample(context.Background())[0]
		if got := r.Spilled.Or(0); got != c.spilled || r.Memory.VRAMTotal.Or(0) != total {
			t.Errorf("step %d: spilled %v of %v", i, r.Spilled, r.Memory)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != c.warnings {
			t.Errorf("step %d: %d warnings, want %d\n%s", i, n, c.warnings, log.String())
		}
	}
	if r := s.Sample(context.Background())[0]; r.Spilled.Known() {
		t.Errorf("with unknown VRAM use: %v", r.Spilled)
	}
}

// A sensor that never answers costs one timeout, then nothing, and the rest of the reading is there.
func TestHangingSensor(t *testing.T) {
	t.Parallel()
	captured := fixtures.Open(t, "xtx-igpu")
	system, err := kfd.Read(context.Background(), captured)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		root := &live{FS: captured, files: map[string]string{}, hang: "hwmon3/temp1_input", block: make(chan struct{})}
		s := telemetry.New(telemetry.Config{Root: root, Logger: quiet(), Limits: sysroot.Limits{Timeout: 100 * time.Millisecond}}, system.Cards, system.Devices(nil))
		for round, want := range []struct {
			took  time.Duration
			cause error
		}{{100 * time.Millisecond, os.ErrDeadlineExceeded}, {0, sysroot.ErrStuck}} {
			start := time.Now()
			readings := s.Sample(t.Context())
			if took := time.Since(start); took != want.took {
				t.Errorf("round %d took %v, want %v", round, took, want.took)
			}
			xtx := readings[0]
			if len(xtx.Temperatures) != 2 || !xtx.Watts.Known() || len(xtx.Problems) != 1 || !errors.Is(xtx.Problems[0], want.cause) {
				t.Errorf("round %d: %+v", round, xtx)
			}
			if len(readings[1].Problems) != 0 || !readings[1].Busy.Known() {
				t.Errorf("round %d: the other card suffers: %+v", round, readings[1])
			}
		}
		close(root.block)
		synctest.Wait()
		if r := s.Sample(t.Context())[0]; len(r.Temperatures) != 3 || len(r.Problems) != 0 {
			t.Errorf("after it answered: %+v", r)
		}
	})
}

func TestRun(t *testing.T) {
	t.Parallel()
	captured := fixtures.Open(t, "xtx")
	system, err := kfd.Read(context.Background(), captured)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := telemetry.New(telemetry.Config{Root: captured, Logger: quiet(), Interval: time.Second}, system.Cards, system.Devices(nil))
		if got := s.Latest(); len(got) != 0 {
			t.Errorf("before the first sample: %v", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx); close(done) }()
		synctest.Wait()
		first := s.Latest()[0].At
		<-time.After(time.Second)
		synctest.Wait()
		if got := s.Latest()[0].At.Sub(first); got != time.Second {
			t.Errorf("the second sample came after %v", got)
		}
		cancel()
		<-done
	})
}

func TestCollector(t *testing.T) {
	t.Parallel()
	s := sampler(t, fixtures.Open(t, "xtx-igpu"), quiet())
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s.Collector())
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil {
		t.Errorf("before the first sample: %d series, %v", n, err)
	}
	s.Sample(context.Background())
	want := `
# HELP hearth_device_busy_ratio Share of time that the engine was busy: gfx, or memory controller.
# TYPE hearth_device_busy_ratio gauge
hearth_device_busy_ratio{engine="gfx",name="AMD Radeon Graphics",pci="0000:10:00.0"} 0
hearth_device_busy_ratio{engine="gfx",name="AMD Radeon RX 7900 XTX",pci="0000:03:00.0"} 0.03
hearth_device_busy_ratio{engine="memory",name="AMD Radeon RX 7900 XTX",pci="0000:03:00.0"} 0.01
# HELP hearth_device_clock_hertz Clock: gfx or memory.
# TYPE hearth_device_clock_hertz gauge
hearth_device_clock_hertz{clock="gfx",name="AMD Radeon Graphics",pci="0000:10:00.0"} 6e+08
hearth_device_clock_hertz{clock="gfx",name="AMD Radeon RX 7900 XTX",pci="0000:03:00.0"} 1.32e+08
hearth_device_clock_hertz{clock="memory",name="AMD Radeon RX 7900 XTX",pci="0000:03:00.0"} 9.6e+07
# HELP hearth_device_power_watts Power of the board, of the whole package on an APU.
# TYPE hearth_device_power_watts gauge
hearth_device_power_watts{name="AMD Radeon Graphics",pci="0000:10:00.0"} 31.144
hearth_device_power_watts{name="AMD Radeon RX 7900 XTX",pci="0000:03:00.0"} 22
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "hearth_device_busy_ratio", "hearth_device_clock_hertz", "hearth_device_power_watts"); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	if n, err := testutil.GatherAndCount(registry, "hearth_device_vram_spilled_bytes"); n != 1 || err != nil {
		t.Errorf("only discrete GPUs spill: %d series, %v", n, err)
	}
}

func TestProcessMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	archive := sysroot.ParseArchive([]byte(`
-- proc/7/fdinfo/3 --
pos:	0
drm-driver:	amdgpu
drm-client-id:	12
drm-pdev:	0000:03:00.0
drm-total-vram:	9 KiB
drm-resident-vram:	2048 KiB
drm-resident-gtt:	16 MiB
amd-evicted-vram:	4 KiB
-- proc/7/fdinfo/4 --
drm-driver:	amdgpu
drm-client-id:	12
drm-pdev:	0000:03:00.0
drm-resident-vram:	2048 KiB
-- proc/7/fdinfo/5 --
drm-driver:	amdgpu
drm-client-id:	13
drm-pdev:	0000:03:00.0
drm-memory-vram:	1024 KiB
-- proc/7/fdinfo/6 --
pos:	0
-- proc/7/fdinfo/7 --
drm-driver:	i915
drm-client-id:	1
-- sys/class/kfd/kfd/proc/7/pasid --
32770
-- sys/class/kfd/kfd/proc/7/vram_8446 --
1073741824
`))
	if err := archive.Unpack(dir); err != nil {
		t.Fatal(err)
	}
	root, err := sysroot.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	clients, err := telemetry.ProcessMemory(root, 7)
	if err != nil || len(clients) != 2 {
		t.Fatalf("%+v, %v", clients, err)
	}
	vram, evicted := telemetry.Sum(clients, "0000:03:00.0")
	if vram.Or(0) != 3<<20 || evicted.Or(0) != 4<<10 || clients[0].GTT.Or(0) != 16<<20 {
		t.Errorf("vram %v, evicted %v of %+v", vram, evicted, clients)
	}
	if vram, _ := telemetry.Sum(clients, "0000:10:00.0"); vram.Known() {
		t.Errorf("another GPU: %v", vram)
	}
	used, err := telemetry.ComputeMemory(root, 7)
	if err != nil || len(used) != 1 || used[8446] != 1<<30 {
		t.Errorf("%v, %v", used, err)
	}
	if _, err := telemetry.ProcessMemory(root, 8); err == nil {
		t.Error("no such process")
	}
}
