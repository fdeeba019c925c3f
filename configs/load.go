package configs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// Options of Load.
type Options struct {
	Env Environ
	// Flags holds parsed flags (see AddFlags); nil: none.
	Flags *pflag.FlagSet
	// File is read instead of looking for one; it must exist then.
	File string
	// UID is part of the runtime folder's name when there is no XDG_RUNTIME_DIR.
	UID int
}

// Value is one setting with the place it came from.
type Value struct {
	Field Field  `json:"-"`
	Key   string `json:"key"`
	Value any    `json:"value"`
	From  string `json:"from"` // "flag --listen", "env HEARTH_LISTEN", the file's path, or "default"
}

// FieldError names the setting that is wrong.
type FieldError struct {
	Key, From, Reason string
}

// Error reads "run.context (env HEARTH_CONTEXT): must not be negative".
func (e *FieldError) Error() string {
	if e.From == "" || e.From == "default" {
		return e.Key + ": " + e.Reason
	}
	return e.Key + " (" + e.From + "): " + e.Reason
}

// Load reads all settings and validates them.
func Load(o Options) (*Config, error) {
	v, from, err := layer(o)
	if err != nil {
		return nil, err
	}
	c := &Config{}
	for _, f := range Fields() {
		// One field at a time, so that an error can name it and where its value is from.
		target := reflect.ValueOf(c).Elem().FieldByIndex(f.index)
		if err := decode(v.Get(f.Key), target.Addr().Interface()); err != nil {
			return nil, &FieldError{f.Key, from[f.Key], decodeReason(err)}
		}
		if f.path() {
			target.SetString(o.Env.expand(target.String(), o.UID))
		}
		c.values = append(c.values, Value{Field: f, Key: f.Key, From: orDefault(from[f.Key])})
	}
	if c.Overrides, err = overrides(v.Get("overrides")); err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		if fe, ok := errors.AsType[*FieldError](err); ok && fe.From == "" {
			fe.From = from[fe.Key]
		}
		return nil, err
	}
	return c, nil
}

func orDefault(s string) string {
	if s == "" {
		return "default"
	}
	return s
}

// layer puts defaults, file, environment and flags over each other and remembers who set what.
func layer(o Options) (v *viper.Viper, from map[string]string, err error) {
	v, from = viper.New(), map[string]string{}
	fields := Fields()
	for _, f := range fields {
		v.SetDefault(f.Key, f.value(o.Env.expand(f.Default, o.UID)))
	}
	file, err := FilePath(o)
	if err != nil {
		return nil, nil, err
	}
	if file != "" {
		if err := readFile(v, file, fields, from); err != nil {
			return nil, nil, err
		}
	}
	for _, f := range fields {
		for _, name := range f.Env {
			if s := o.Env.Get(name); s != "" {
				v.Set(f.Key, f.value(s))
				from[f.Key] = "env " + name
				break
			}
		}
		if o.Flags == nil || f.Flag == "" {
			continue
		}
		if fl := o.Flags.Lookup(f.Flag); fl != nil && fl.Changed {
			if sl, ok := fl.Value.(pflag.SliceValue); ok {
				v.Set(f.Key, sl.GetSlice())
			} else {
				v.Set(f.Key, fl.Value.String())
			}
			from[f.Key] = "flag --" + f.Flag
		}
	}
	return v, from, nil
}

// value keeps an empty list a list.
func (f Field) value(s string) any {
	if f.Type.Kind() == reflect.Slice {
		return list(s)
	}
	return s
}

// FilePath is the configuration file that Load reads: the given one, else the first that exists of the user's and the
// system's; empty when there is none.
func FilePath(o Options) (string, error) {
	if o.File == "" {
		o.File = o.Env.Get("HEARTH_CONFIG")
	}
	if o.File != "" {
		if _, err := os.Stat(o.File); err != nil {
			return "", fmt.Errorf("configuration file: %w", err)
		}
		return o.File, nil
	}
	for _, dir := range []string{o.Env.base("config", o.UID), "/etc/hearth"} {
		for _, ext := range []string{"yaml", "yml", "toml"} {
			p := filepath.Join(dir, "config."+ext)
			if _, err := os.Stat(p); err == nil && dir != "" {
				return p, nil
			} else if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
				return "", fmt.Errorf("configuration file: %w", err)
			}
		}
	}
	return "", nil
}

// DefaultFile is where `hearth config init` writes.
func DefaultFile(env Environ) string {
	base := env.base("config", 0)
	if base == "" {
		return ""
	}
	return filepath.Join(base, "config.yaml")
}

// readFile merges the file and refuses keys that mean nothing, with the nearest one that does.
func readFile(v *viper.Viper, file string, fields []Field, from map[string]string) error {
	fv := viper.New()
	fv.SetConfigFile(file)
	if err := fv.ReadInConfig(); err != nil {
		return fmt.Errorf("configuration file %s: %w", file, err)
	}
	known := map[string]bool{"overrides": true}
	for _, f := range fields {
		known[f.Key] = true
	}
	keys := fv.AllKeys()
	slices.Sort(keys)
	for _, k := range keys {
		if !known[k] {
			return &FieldError{Key: k, From: file, Reason: "is no setting; see hearth config schema"}
		}
		from[k] = file
	}
	return v.MergeConfigMap(fv.AllSettings())
}

// decode converts what a file, variable or flag holds to the field's type.
func decode(in, out any) error {
	d, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result: out, TagName: "key", WeaklyTypedInput: true, ErrorUnused: true,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(), mapstructure.TextUnmarshallerHookFunc(), splitHook,
		),
	})
	if err != nil {
		return err
	}
	return d.Decode(in)
}

// splitHook lets a list be written as one string with commas. A number for a duration is refused: its unit would be a
// guess.
func splitHook(from, to reflect.Type, data any) (any, error) {
	switch {
	case from.Kind() == reflect.String && to.Kind() == reflect.Slice:
		return list(data.(string)), nil
	case to == reflect.TypeFor[time.Duration]() && from.Kind() != reflect.String && from != to:
		return nil, fmt.Errorf("needs a unit, such as 30s or 5m")
	}
	return data, nil
}

// decodeReason drops the decoder's own preamble.
func decodeReason(err error) string {
	s := err.Error()
	if i := strings.LastIndex(s, "\n\n"); i >= 0 {
		s = s[i+2:]
	}
	s = strings.TrimPrefix(strings.TrimSpace(s), "'' ")
	return strings.TrimPrefix(s, "cannot parse value as ")
}
