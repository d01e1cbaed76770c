package flat

import (
	"errors"
	"fmt"

	"github.com/nearcall/nearcall/flat/internal/reflection"
)

// errNotSchema is the error for bytes that are not a compiled schema.
var errNotSchema = errors.New("flat: this is not a compiled schema; flatc --binary --schema writes one, with the extension bfbs")

// parse returns the tables of a compiled schema.
func parse(bfbs []byte) (tables []*table, err error) {
	if len(bfbs) < 8 || string(bfbs[4:8]) != "BFBS" {
		return nil, errNotSchema
	}
	defer func() {
		if recover() != nil { // the generated code panics if the bytes are not what they should be
			tables, err = nil, errNotSchema
		}
	}()
	tables, err = compile(reflection.GetRootAsSchema(bfbs, 0))
	if err == nil && len(tables) == 0 {
		return nil, errNotSchema
	}
	return tables, err
}

// A table is the type of a table.
type table struct {
	name   string
	fields []field
}

// A field is a field of a table.
type field struct {
	name     string
	slot     int  // where its offset is in the table's vtable
	required bool // the table must have it
	kind     kind
	size     int    // size of the part that is in the table itself, in bytes
	align    int    // alignment of that part
	many     bool   // the offset leads to a vector; kind is the kind of its elements
	table    *table // of kindTable
	elem     inline // of kindVector
	union    union
}

// An inline is the type of a scalar or a struct.
type inline struct{ size, align int }

// A kind is how a field is stored.
type kind byte

const (
	kindInline kind = iota // a scalar or a struct, in the table itself
	kindString             // an offset to a string
	kindTable              // an offset to a table
	kindUnion              // an offset to a table of the type that the previous field says
	kindVector             // an offset to a vector of scalars or structs
)

// A union has the tables that a union field can refer to, by the numbers of their types.
type union map[byte]*table

// A compiler compiles a schema's reflection.
type compiler struct {
	schema *reflection.Schema
	tables []*table // by index in objects; nil for structs
	inline []inline // of structs, by the same index
	unions []union  // by index in enums; nil for others
}

func compile(from *reflection.Schema) (all []*table, err error) {
	c := compiler{
		schema: from,
		tables: make([]*table, from.ObjectsLength()),
		inline: make([]inline, from.ObjectsLength()),
		unions: make([]union, from.EnumsLength()),
	}
	var o reflection.Object
	for i := range c.tables {
		from.Objects(&o, i)
		if o.IsStruct() {
			c.inline[i] = inline{int(o.Bytesize()), int(o.Minalign())}
			continue
		}
		c.tables[i] = &table{name: string(o.Name())}
		all = append(all, c.tables[i])
	}
	for i := range c.unions {
		if err := c.compileUnion(i); err != nil {
			return nil, err
		}
	}
	for i, t := range c.tables {
		if t == nil {
			continue
		}
		from.Objects(&o, i)
		t.fields = make([]field, 0, o.FieldsLength())
		for j := range o.FieldsLength() {
			var f reflection.Field
			o.Fields(&f, j)
			compiled, err := c.field(&f)
			if err != nil {
				return nil, fmt.Errorf("flat: the field %s of the table %s: %w", f.Name(), t.name, err)
			}
			t.fields = append(t.fields, compiled)
		}
	}
	return all, nil
}

// compileUnion compiles the enum i, if it is a union.
func (c *compiler) compileUnion(i int) error {
	var e reflection.Enum
	c.schema.Enums(&e, i)
	if !e.IsUnion() {
		return nil
	}
	u := make(union)
	for j := range e.ValuesLength() {
		var v reflection.EnumVal
		e.Values(&v, j)
		t := v.UnionType(nil)
		switch {
		case v.Value() < 0 || v.Value() > 255:
			return fmt.Errorf("flat: the union %s has a type with the number %d", e.Name(), v.Value())
		case t == nil || t.BaseType() == reflection.BaseTypeNone:
		case t.BaseType() == reflection.BaseTypeObj && c.tables[t.Index()] != nil:
			u[byte(v.Value())] = c.tables[t.Index()]
		default:
			return fmt.Errorf("flat: the union %s has a type that is no table", e.Name())
		}
	}
	c.unions[i] = u
	return nil
}

const offsetSize = 4

// field compiles a field.
func (c *compiler) field(from *reflection.Field) (f field, err error) {
	t := from.Type(nil)
	f = field{
		name: string(from.Name()), slot: int(from.Offset()), required: from.Required(),
		size: offsetSize, align: offsetSize,
	}
	if from.Offset64() {
		return f, errors.New("offsets of 64 bits are not known here")
	}
	switch base := t.BaseType(); {
	case base == reflection.BaseTypeString:
		f.kind = kindString
	case base == reflection.BaseTypeUnion:
		f.kind, f.union = kindUnion, c.unions[t.Index()]
	case base == reflection.BaseTypeObj:
		if f.table = c.tables[t.Index()]; f.table != nil {
			f.kind = kindTable
		} else {
			f.size, f.align = c.inline[t.Index()].size, c.inline[t.Index()].align
		}
	case base == reflection.BaseTypeVector:
		err = c.vector(&f, t)
	case scalarSize(base) > 0:
		f.size, f.align = scalarSize(base), scalarSize(base)
	default:
		err = fmt.Errorf("the type %s is not known here", base)
	}
	return f, err
}

// vector compiles a field that is a vector.
func (c *compiler) vector(f *field, t *reflection.Type) error {
	switch elem := t.Element(); {
	case elem == reflection.BaseTypeString:
		f.kind, f.many = kindString, true
	case elem == reflection.BaseTypeObj:
		if f.table = c.tables[t.Index()]; f.table != nil {
			f.kind, f.many = kindTable, true
		} else {
			f.kind, f.elem = kindVector, c.inline[t.Index()]
		}
	case scalarSize(elem) > 0:
		f.kind, f.elem = kindVector, inline{scalarSize(elem), scalarSize(elem)}
	default:
		return fmt.Errorf("a vector of %s is not known here", elem)
	}
	return nil
}

// scalarSize returns the size of a scalar in bytes, or 0 for another type.
func scalarSize(t reflection.BaseType) int {
	switch t {
	case reflection.BaseTypeUType, reflection.BaseTypeBool, reflection.BaseTypeByte, reflection.BaseTypeUByte:
		return 1
	case reflection.BaseTypeShort, reflection.BaseTypeUShort:
		return 2
	case reflection.BaseTypeInt, reflection.BaseTypeUInt, reflection.BaseTypeFloat:
		return 4
	case reflection.BaseTypeLong, reflection.BaseTypeULong, reflection.BaseTypeDouble:
		return 8
	}
	return 0
}
