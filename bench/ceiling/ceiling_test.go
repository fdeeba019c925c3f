package ceiling

import (
	"bytes"
	"strings"
	"testing"
)

func TestParseRaw(t *testing.T) {
	out := []byte(`{"runs":[{"kind":"decode","tokens_per_second":12.5},{"kind":"prefill","tokens_per_second":99}]}`)
	if v, err := parseRaw(out, "prefill"); v != 99 || err != nil {
		t.Errorf("prefill = %v, %v", v, err)
	}
	for _, bad := range []string{``, `{"runs":[]}`, `{"runs":[{"kind":"decode","tokens_per_second":0}]}`} {
		if v, err := parseRaw([]byte(bad), "decode"); err == nil {
			t.Errorf("%q gave %v", bad, v)
		}
	}
}

func TestTheBetterLayoutCounts(t *testing.T) {
	r := Row{Kind: "decode"}
	r.fill(map[string][]float64{"unified": {100, 90, 110}, "streams": {210, 200, 190}}, []float64{190, 180, 200})
	if r.Layout != "streams" || r.Raw != 200 || r.Ratio != 0.95 {
		t.Errorf("row = %+v", r)
	}
	var b bytes.Buffer
	(&Result{Rows: []Row{r}}).Print(&b)
	if !strings.Contains(b.String(), "200.0 (streams) | 190.0 | 0.950") {
		t.Errorf("report:\n%s", b.String())
	}
}
