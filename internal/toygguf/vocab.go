package toygguf

// Token ids every toy except Bert shares. Bytes follow at TokenByte0, then the
// control tokens, then a lone word mark, then the words.
const (
	TokenUnk   = 0
	TokenBOS   = 1
	TokenEOS   = 2
	TokenByte0 = 3 // TokenByte0+b renders byte b

	TokenUser      = TokenByte0 + 256 // <|user|>, control
	TokenAssistant = TokenUser + 1    // <|assistant|>, control
	TokenEnd       = TokenUser + 2    // <|end|>, control, end of turn
	tokenMark      = TokenUser + 3
	TokenWord0     = tokenMark + 1 // Word(0)

	// MinVocab leaves room for every one-letter word.
	MinVocab = TokenWord0 + 26
	// maxVocab is where the words of up to four letters end.
	maxVocab = TokenWord0 + 26 + 26*26 + 26*26*26 + 26*26*26*26
)

// Token ids of a Bert toy; words start at BertWord0.
const (
	BertPad   = 0
	BertUnk   = 1
	BertCLS   = 2
	BertSEP   = 3
	BertMask  = 4
	BertWord0 = 5
)

// GGUF token types.
const (
	typeNormal  = 1
	typeUnknown = 2
	typeControl = 3
	typeByte    = 6
)

const defaultTemplate = "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% else %}<|user|>{% endif %}" +
	"{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"

const mark = "\u2581" // SentencePiece's word mark

// Word returns the i-th word of the vocabulary: a, b, ... z, aa, ab, ... In a
// text of words separated by single spaces each of the first
// Vocab-TokenWord0 words is one token, TokenWord0+i.
func Word(i int) string {
	n, first := 1, 26
	for i >= first {
		i -= first
		first *= 26
		n++
	}
	b := make([]byte, n)
	for k := n - 1; k >= 0; k-- {
		b[k] = byte('a' + i%26)
		i /= 26
	}
	return string(b)
}

type vocab struct {
	model  string
	tokens []string
	scores []float32
	types  []int32
}

// spmVocab is a SentencePiece vocabulary. Scores fall with the id, so that
// merging goes from short words to long ones and every prefix of a word exists.
func spmVocab(n int) vocab {
	v := vocab{model: "llama"}
	add := func(tok string, typ int32, score float32) {
		v.tokens = append(v.tokens, tok)
		v.types = append(v.types, typ)
		v.scores = append(v.scores, score)
	}
	add("<unk>", typeUnknown, 0)
	add("<s>", typeControl, 0)
	add("</s>", typeControl, 0)
	const hex = "0123456789ABCDEF"
	for b := range 256 {
		add("<0x"+string(hex[b>>4])+string(hex[b&15])+">", typeByte, 0)
	}
	add("<|user|>", typeControl, 0)
	add("<|assistant|>", typeControl, 0)
	add("<|end|>", typeControl, 0)
	add(mark, typeNormal, -1)
	for i := 0; len(v.tokens) < n; i++ {
		add(mark+Word(i), typeNormal, -float32(i)-2)
	}
	return v
}

// bertVocab is a WordPiece vocabulary: whole words carry the word mark, the
// 26 letters exist as continuations too.
func bertVocab(n int) vocab {
	v := vocab{model: "bert"}
	add := func(tok string, typ int32) {
		v.tokens = append(v.tokens, tok)
		v.types = append(v.types, typ)
		v.scores = append(v.scores, 0)
	}
	for _, s := range []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} {
		typ := int32(typeControl)
		if s == "[UNK]" {
			typ = typeUnknown
		}
		add(s, typ)
	}
	for i := 0; len(v.tokens) < n-26; i++ {
		add(mark+Word(i), typeNormal)
	}
	for i := range 26 {
		add(Word(i), typeNormal)
	}
	return v
}
