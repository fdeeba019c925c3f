package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"hearth/backends/sysroot"
)

func TestDriverDirs(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("opt/mesa/lib/libvulkan_lvp.so", "")
	write("usr/lib/libvulkan_radeon.so", "")
	write("opt/mesa/icd.d/lvp.json", `{"file_format_version":"1.0.0","ICD":{"library_path":"/opt/mesa/lib/libvulkan_lvp.so","api_version":"1.4.0"}}`)
	write("opt/mesa/icd.d/near.json", `{"file_format_version":"1.0.0","ICD":{"library_path":"../lib/libvulkan_lvp.so","api_version":"1.4.0"}}`)
	write("usr/share/radeon.json", `{"file_format_version":"1.0.0","ICD":{"library_path":"libvulkan_radeon.so","api_version":"1.3.0"}}`)
	fsys, err := sysroot.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  []string
		want []string
	}{
		{nil, nil},
		{[]string{"PATH=/opt/mesa/icd.d/lvp.json"}, nil},
		{[]string{"VK_DRIVER_FILES=/opt/mesa/icd.d/lvp.json:/opt/mesa/icd.d/near.json"}, []string{"/opt/mesa/lib"}},
		{[]string{"VK_ICD_FILENAMES=/usr/share/radeon.json"}, nil}, // found by the system's own search
		{[]string{"VK_ADD_DRIVER_FILES=/nowhere.json"}, nil},
	} {
		if got := driverDirs(fsys, c.env); !slices.Equal(got, c.want) {
			t.Errorf("%q: folders %q, want %q", c.env, got, c.want)
		}
	}
}
