package events

// message is what travels beside events and commands.
type message interface {
	appendJSON(b []byte) ([]byte, error)
	readJSON(p *parser)
	check() error
}

func appendMessage(dst []byte, m message) ([]byte, error) {
	b, err := m.appendJSON(dst)
	if err != nil {
		return dst, err
	}
	return b, nil
}

// readMessage takes members in any order and spacing; an unknown, missing,
// doubled or mistyped one and trailing bytes are *[FieldError]s.
func readMessage(b []byte, m message) error {
	p := parser{b: b}
	p.space()
	m.readJSON(&p)
	p.end()
	return p.failure()
}

func readChecked(b []byte, m message) error {
	if err := readMessage(b, m); err != nil {
		return err
	}
	return m.check()
}

// AppendWork appends the wire form of a work item.
func AppendWork(dst []byte, w *Work) ([]byte, error) { return appendMessage(dst, w) }

// DecodeWork decodes and checks a work item.
func DecodeWork(b []byte) (*Work, error) {
	w := new(Work)
	if err := readChecked(b, w); err != nil {
		return nil, err
	}
	return w, nil
}

// AppendHeartbeat appends the wire form of a heartbeat.
func AppendHeartbeat(dst []byte, h *Heartbeat) ([]byte, error) { return appendMessage(dst, h) }

// DecodeHeartbeat decodes and checks a heartbeat.
func DecodeHeartbeat(b []byte) (*Heartbeat, error) {
	h := new(Heartbeat)
	if err := readChecked(b, h); err != nil {
		return nil, err
	}
	return h, nil
}

// AppendAnswer appends the wire form of an answer.
func AppendAnswer(dst []byte, a *Answer) ([]byte, error) { return appendMessage(dst, a) }

// DecodeAnswer decodes an answer. A grant in it is taken over byte for byte,
// since its signature is over those bytes; [SignedGrant.Open] reads it.
func DecodeAnswer(b []byte) (*Answer, error) {
	a := new(Answer)
	if err := readMessage(b, a); err != nil {
		return nil, err
	}
	return a, nil
}

// AppendPromptRequest appends the wire form of a request for a part.
func AppendPromptRequest(dst []byte, r *PromptRequest) ([]byte, error) {
	return appendMessage(dst, r)
}

// DecodePromptRequest decodes and checks a request for a part.
func DecodePromptRequest(b []byte) (*PromptRequest, error) {
	r := new(PromptRequest)
	if err := readChecked(b, r); err != nil {
		return nil, err
	}
	return r, nil
}

// AppendSignedGrant appends the wire form of a signed grant.
func AppendSignedGrant(dst []byte, s *SignedGrant) ([]byte, error) { return appendMessage(dst, s) }

// DecodeSignedGrant decodes a signed grant. Nothing in it is proven before
// [SignedGrant.Open].
func DecodeSignedGrant(b []byte) (*SignedGrant, error) {
	s := new(SignedGrant)
	if err := readMessage(b, s); err != nil {
		return nil, err
	}
	return s, nil
}

// decodeQuery takes an empty payload for an object without members, which is
// what a bare request from the command line sends.
func decodeQuery(b []byte, m message) error {
	if len(b) == 0 {
		b = []byte("{}")
	}
	return readChecked(b, m)
}

// DecodeGet decodes and checks a get query.
func DecodeGet(b []byte) (*GetQuery, error) {
	q := new(GetQuery)
	if err := decodeQuery(b, q); err != nil {
		return nil, err
	}
	return q, nil
}

// DecodeHistory decodes and checks a history query.
func DecodeHistory(b []byte) (*HistoryQuery, error) {
	q := new(HistoryQuery)
	if err := decodeQuery(b, q); err != nil {
		return nil, err
	}
	return q, nil
}

// DecodeList decodes and checks a list query, and fills in its limit.
func DecodeList(b []byte) (*ListQuery, error) {
	q := new(ListQuery)
	if err := decodeQuery(b, q); err != nil {
		return nil, err
	}
	if q.Limit == 0 {
		q.Limit = DefaultListLimit
	}
	return q, nil
}

// DecodeWorkers decodes a workers query.
func DecodeWorkers(b []byte) (*WorkersQuery, error) {
	q := new(WorkersQuery)
	if err := decodeQuery(b, q); err != nil {
		return nil, err
	}
	return q, nil
}

// DecodeInfo decodes an info query.
func DecodeInfo(b []byte) (*InfoQuery, error) {
	q := new(InfoQuery)
	if err := decodeQuery(b, q); err != nil {
		return nil, err
	}
	return q, nil
}
