package configs

import (
	"reflect"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Field describes one setting.
type Field struct {
	Key     string // dotted, as in the file
	Flag    string // without dashes; empty: none
	Env     []string
	Default string
	Enum    []string
	Unit    string
	Doc     string
	Secret  bool
	Type    reflect.Type
	index   []int
}

// Fields lists every setting in the order of the struct.
func Fields() []Field { return collect(reflect.TypeFor[Config](), "", nil) }

func collect(t reflect.Type, prefix string, index []int) []Field {
	var out []Field
	for i := range t.NumField() {
		sf := t.Field(i)
		key, tagged := sf.Tag.Lookup("key")
		if !tagged || sf.Name == "Overrides" {
			continue
		}
		at := append(append([]int{}, index...), i)
		if sf.Type.Kind() == reflect.Struct {
			out = append(out, collect(sf.Type, prefix+key+".", at)...)
			continue
		}
		out = append(out, Field{
			Key: prefix + key, Flag: sf.Tag.Get("flag"), Env: list(sf.Tag.Get("env")), Default: sf.Tag.Get("default"),
			Enum: list(sf.Tag.Get("enum")), Unit: sf.Tag.Get("unit"), Doc: sf.Tag.Get("doc"),
			Secret: sf.Tag.Get("secret") != "", Type: sf.Type, index: at,
		})
	}
	return out
}

// path says that the setting is a folder with a computed default.
func (f Field) path() bool { return strings.HasPrefix(f.Default, "$") }

// list splits at commas, dropping blanks and empty elements.
func list(s string) []string {
	var out []string
	for _, e := range strings.Split(s, ",") {
		if e = strings.TrimSpace(e); e != "" {
			out = append(out, e)
		}
	}
	return out
}

// AddFlags defines the flags of the settings whose keys start with one of the prefixes. Defaults are shown in the help
// text but not set: a flag that was not given must not hide the file.
func AddFlags(fs *pflag.FlagSet, prefixes ...string) {
	for _, f := range Fields() {
		if f.Flag == "" || !hasAnyPrefix(f.Key, prefixes) {
			continue
		}
		usage := f.Doc
		if len(f.Enum) > 0 {
			usage += " (" + strings.Join(f.Enum, ", ") + ")"
		}
		if f.Default != "" && f.Default != "0" {
			usage += " (default " + f.Default + ")"
		}
		switch {
		case f.Type.Kind() == reflect.Bool:
			fs.Bool(f.Flag, false, usage)
		case f.Type == reflect.TypeFor[time.Duration]():
			fs.Duration(f.Flag, 0, usage)
		case f.Type.Kind() == reflect.Int:
			fs.Int(f.Flag, 0, usage)
		case f.Type.Kind() == reflect.Slice:
			fs.StringSlice(f.Flag, nil, usage)
		default:
			fs.String(f.Flag, "", usage)
		}
		// pflag would print the zero value as the default.
		fs.Lookup(f.Flag).DefValue = ""
	}
}

func hasAnyPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
