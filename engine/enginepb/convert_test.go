package enginepb

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"hearth/engine"
)

// fill sets every field below v to a distinct non-zero value, so that a field which a conversion forgets comes back
// as zero. depth bounds the recursion of TokenLogprob.
func fill(v reflect.Value, next *int, depth int) {
	*next++
	n := *next
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(fmt.Sprintf("s%d", n))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(n))
	case reflect.Int8:
		v.SetInt(int64(-1))
	case reflect.Uint8:
		v.SetUint(uint64(n % 256))
	case reflect.Uint64:
		v.SetUint(uint64(n))
	case reflect.Float32:
		v.SetFloat(float64(n) + 0.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), next, depth)
	case reflect.Slice:
		if depth == 0 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), next, depth-1)
		fill(v.Index(1), next, depth-1)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), next, depth)
		}
	case reflect.Func: // what stays in the process
	case reflect.Interface: // error
		v.Set(reflect.ValueOf(error(&engine.Error{Kind: engine.KindInternal, Message: "m", Cause: errors.New("c")})))
	default:
		panic("fill: " + v.Kind().String())
	}
}

func filled[T any](depth int) T {
	var t T
	n := 0
	fill(reflect.ValueOf(&t).Elem(), &n, depth)
	return t
}

// wire sends m through its encoding.
func wire[M proto.Message](t *testing.T, m M, into M) M {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
	return into
}

func same(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestEveryFieldCrosses(t *testing.T) {
	spec := filled[engine.LoadSpec](2)
	same(t, ToLoadSpec(wire(t, FromLoadSpec(&spec), &LoadSpec{})), spec)
	info := filled[engine.Info](2)
	same(t, ToInfo(wire(t, FromInfo(&info), &Info{})), info)
	stats := filled[engine.Stats](2)
	same(t, ToStats(wire(t, FromStats(&stats), &Stats{})), stats)
	req := filled[engine.Request](3)
	same(t, ToRequest(wire(t, FromRequest(&req), &Request{})), req)
	ev := filled[engine.Event](2)
	same(t, ToEvent(wire(t, FromEvent(7, &ev), &Event{})), ev)
	er := filled[engine.EmbedRequest](3)
	same(t, ToEmbedRequest(wire(t, FromEmbedRequest(&er), &EmbedRequest{})), er)
	res := filled[engine.EmbedResult](3)
	same(t, ToEmbedResult(wire(t, FromEmbedResult(&res), &EmbedReply{})), res)
}

func TestZeroValuesCross(t *testing.T) {
	same(t, ToRequest(wire(t, FromRequest(&engine.Request{}), &Request{})), engine.Request{})
	same(t, ToEvent(wire(t, FromEvent(0, &engine.Event{}), &Event{})), engine.Event{})
	same(t, ToLoadSpec(wire(t, FromLoadSpec(&engine.LoadSpec{}), &LoadSpec{})), engine.LoadSpec{})
}

func TestNegativesAndInfinitiesCross(t *testing.T) {
	req := engine.Request{MaxTokens: -1, Priority: engine.PriorityBatch, Sampling: engine.Sampling{
		TopK: -1, RepeatLastN: -1, LogitBias: []engine.Bias{{Token: 3, Value: float32(math.Inf(-1))}},
	}}
	same(t, ToRequest(wire(t, FromRequest(&req), &Request{})), req)
}

func TestErrorsCrossAStatus(t *testing.T) {
	in := &engine.Error{
		Kind: engine.KindContextLength, Message: "too long", Field: "messages", Hint: "shorten it",
		RetryAfter: 3 * time.Second, PromptTokens: 9, ContextTokens: 8, Cause: errors.New("deep"),
	}
	out := FromStatusError(StatusError(fmt.Errorf("wrapped: %w", in)))
	got, ok := errors.AsType[*engine.Error](out)
	if !ok {
		t.Fatalf("%T is no *engine.Error", out)
	}
	if got.Cause == nil || got.Cause.Error() != "deep" {
		t.Errorf("cause %v", got.Cause)
	}
	got.Cause, in.Cause = nil, nil
	same(t, got, in)

	if k := engine.KindOf(FromStatusError(StatusError(errors.New("secret path")))); k != engine.KindInternal {
		t.Errorf("a plain error came back as %q", k)
	}
	if m := FromError(errors.New("secret path")).Message; m != "the engine failed" {
		t.Errorf("the message shows the cause: %q", m)
	}
	if StatusError(nil) != nil || FromStatusError(nil) != nil || ToError(FromError(nil)) != nil {
		t.Error("nil must stay nil")
	}
	if k := engine.KindOf(FromStatusError(errors.New("connection refused"))); k != engine.KindUnavailable {
		t.Errorf("a transport error came back as %q", k)
	}
}
