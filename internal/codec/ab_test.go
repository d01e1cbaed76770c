package codec
import ("testing";"time";"fmt";"runtime/debug";"runtime";"google.golang.org/grpc/interop/grpc_testing";"google.golang.org/protobuf/proto";"os")
var sinkA any
func TestAB(t *testing.T){
 if os.Getenv("AB")==""{t.Skip()}
 debug.SetGCPercent(-1)
 src:=payload(32); c:=Proto(); rec:=record(); var anysrc any=src; var anyrec any=rec
 dstR:=&grpc_testing.SimpleRequest{}
 fs:=[]struct{n string;f func()}{
  {"new", func(){ sinkA=c.New(anysrc)}},
  {"floor", func(){ m:=new(grpc_testing.SimpleRequest); m.Payload=new(grpc_testing.Payload); m.Payload.Body=append([]byte(nil),src.Payload.Body...); sinkA=m }},
  {"copy", func(){ m:=c.New(anysrc); c.Copy(m,anysrc); sinkA=m }},
  {"copyinto", func(){ dstR.Payload=nil; c.Copy(dstR,anysrc)}},
  {"reused", func(){ c.Copy(dstR,anysrc)}},
  {"merge", func(){ m:=c.New(anysrc); proto.Merge(m.(proto.Message),src); sinkA=m }},
  {"merge+checks", func(){ m:=c.New(anysrc); proto.Size(src); proto.CheckInitialized(src); proto.Merge(m.(proto.Message),src); sinkA=m }},
  {"bytes", func(){ m:=c.New(anysrc); b,_:=proto.Marshal(src); proto.Unmarshal(b,m.(proto.Message)); sinkA=m }},
  {"rec copy", func(){ m:=c.New(anyrec); c.Copy(m,anyrec); sinkA=m }},
  {"rec merge", func(){ m:=c.New(anyrec); proto.Merge(m.(proto.Message),rec); sinkA=m }},
  {"rec bytes", func(){ m:=c.New(anyrec); b,_:=proto.Marshal(rec); proto.Unmarshal(b,m.(proto.Message)); sinkA=m }},
 }
 min:=make([]time.Duration,len(fs))
 for r:=0;r<300;r++{ for i,f:=range fs{ s:=time.Now(); for k:=0;k<1000;k++{f.f()}; d:=time.Since(s); if min[i]==0||d<min[i]{min[i]=d} }; if r%10==0{runtime.GC()} }
 for i,f:=range fs{ fmt.Printf("%-14s %6.1f ns\n",f.n,float64(min[i].Nanoseconds())/1000)}
}
