package kfd_test

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"hearth/backends"
	"hearth/backends/fixtures"
	"hearth/backends/kfd"
)

var update = flag.Bool("update", false, "write the golden files")

func read(t *testing.T, machine string) kfd.System {
	t.Helper()
	s, err := kfd.Read(context.Background(), fixtures.Open(t, machine))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestGolden pins what is read from each machine, the agents ROCr will list there, and the device rows.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, machine := range fixtures.Names(t) {
		t.Run(machine, func(t *testing.T) {
			t.Parallel()
			s := read(t, machine)
			agents := s.Agents(nil)
			fatal := ""
			if agents.Fatal != nil {
				fatal = agents.Fatal.Error()
			}
			got, err := json.MarshalIndent(struct {
				Devices []backends.Device `json:"devices"`
				Agents  kfd.Agents        `json:"agents"`
				Fatal   string            `json:"fatal,omitempty"`
				System  kfd.System        `json:"system"`
			}{s.Devices(nil), agents, fatal, s}, "", " ")
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
			if string(got) != string(want) {
				t.Errorf("differs from %s; look at it and run with -update\n%s", golden, diff(string(want), string(got)))
			}
		})
	}
}
