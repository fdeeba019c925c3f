package native

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAvailableMemory(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"nothing known", nil, 0},
		{"no group", map[string]string{"proc/meminfo": "MemTotal: 100 kB\nMemAvailable:    64 kB\n"}, 64 << 10},
		{"unlimited group", map[string]string{
			"proc/meminfo": "MemAvailable: 64 kB\n", "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "5\n",
		}, 64 << 10},
		{"limit above the own group", map[string]string{
			"proc/meminfo": "MemAvailable: 64 kB\n", "proc/self/cgroup": "1:cpu:/x\n0::/a/b\n",
			"sys/fs/cgroup/a/memory.max": "9000\n", "sys/fs/cgroup/a/memory.current": "5000\n",
		}, 4000},
		{"a container's view", map[string]string{
			"proc/meminfo": "MemAvailable: 64 kB\n", "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "9000\n", "sys/fs/cgroup/memory.current": "9001\n",
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range c.files {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := available(root); got != c.want {
				t.Errorf("%d bytes, want %d", got, c.want)
			}
		})
	}
}
