# SPDX-License-Identifier: Apache-2.0
"""Words of seven languages and of emoji lines: the slots that `languages` fills, and capitals by their local names."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LanguageTable:
    """A sentence grammar of one language.

    Each pattern names slots of `slots`; every combination is a correct sentence. `space` separates
    sentences, and an answer from its question. `capital_answer` and `capital_questions` take {country} and {city}.
    """

    code: str
    space: str
    patterns: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    capital_questions: tuple[str, ...] = ()
    capital_answer: str = ""
    capitals: tuple[tuple[str, str], ...] = ()
    asks: tuple[tuple[str, str], ...] = ()


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split("|"))


def _capitals(text: str) -> tuple[tuple[str, str], ...]:
    pairs = (item.split(":") for item in text.split("|"))
    return tuple((country.strip(), city.strip()) for country, city in pairs)


CHINESE = LanguageTable(
    code="zh",
    space="",
    patterns=("{time}，{who}在{place}{action}。", "{who}很喜欢{thing}，因为{reason}。"),
    slots={
        "time": _words("今天早上|昨天晚上|星期天|下雨的时候|放学以后|春天来了|每天中午|周末"),
        "who": _words("我妈妈|小猫|老师|我的朋友|爷爷|小明|那个女孩|我们|邻居|医生|弟弟|小红"),
        "place": _words("公园里|学校|家里|图书馆|河边|火车站|厨房里|花园里|商店门口|山上"),
        "action": _words("看书|唱歌|喝茶|跑步|吃面条|写信|画画|睡觉|听音乐|和孩子们玩|学习中文|拍照片"),
        "thing": _words("苹果|音乐|下雪天|热牛奶|这本书|红色的花|蓝色的大海|新鲜的面包|动物|电影"),
        "reason": _words("非常有意思|味道很好|让人高兴|看起来很漂亮|可以和家人分享|一点也不贵"),
    },
    capital_questions=("{country}的首都是哪里？", "{country}的首都是哪个城市？", "请告诉我{country}的首都。"),
    capital_answer="{country}的首都是{city}。",
    capitals=_capitals(
        "法国:巴黎|德国:柏林|意大利:罗马|西班牙:马德里|日本:东京|中国:北京|印度:新德里|埃及:开罗|俄罗斯:莫斯科|英国:伦敦|"
        "加拿大:渥太华|巴西:巴西利亚|希腊:雅典|土耳其:安卡拉|泰国:曼谷|越南:河内|韩国:首尔|美国:华盛顿|瑞典:斯德哥尔摩|葡萄牙:里斯本"
    ),
    asks=(
        ("你好！", "你好！很高兴见到你。"),
        ("天空是什么颜色？", "天空是蓝色的。"),
        ("谢谢你！", "不客气！"),
    ),
)
JAPANESE = LanguageTable(
    code="ja",
    space="",
    patterns=("{time}、{who}は{place}で{action}。", "{who}は{thing}が大好きです。{reason}からです。"),
    slots={
        "time": _words("今朝|昨日の夜|日曜日|雨の日に|放課後|春になると|毎日お昼に|週末"),
        "who": _words("母|子猫|先生|私の友達|おじいさん|太郎さん|あの女の子|私たち|隣の人|お医者さん|弟|花子さん"),
        "place": _words("公園|学校|家|図書館|川のそば|駅|台所|庭|店の前|山の上"),
        "action": _words(
            "本を読みます|歌を歌います|お茶を飲みます|走ります|うどんを食べます|手紙を書きます|絵を描きます|"
            "昼寝をします|音楽を聞きます|子供たちと遊びます|日本語を勉強します|写真を撮ります"
        ),
        "thing": _words("りんご|音楽|雪の日|温かい牛乳|この本|赤い花|青い海|焼きたてのパン|動物|映画"),
        "reason": _words("とても面白い|味がとてもいい|みんなが笑う|見た目がきれいだ|家族と分けられる|値段が安い"),
    },
    capital_questions=(
        "{country}の首都はどこですか？",
        "{country}の首都はどの都市ですか？",
        "{country}の首都を教えてください。",
    ),
    capital_answer="{country}の首都は{city}です。",
    capitals=_capitals(
        "フランス:パリ|ドイツ:ベルリン|イタリア:ローマ|スペイン:マドリード|日本:東京|中国:北京|インド:ニューデリー|エジプト:カイロ|"
        "ロシア:モスクワ|イギリス:ロンドン|カナダ:オタワ|ブラジル:ブラジリア|ギリシャ:アテネ|トルコ:アンカラ|タイ:バンコク|"
        "ベトナム:ハノイ|韓国:ソウル|アメリカ:ワシントン|スウェーデン:ストックホルム|ポルトガル:リスボン"
    ),
    asks=(
        ("こんにちは！", "こんにちは！お会いできてうれしいです。"),
        ("空は何色ですか？", "空は青いです。"),
        ("ありがとう！", "どういたしまして！"),
    ),
)
ARABIC = LanguageTable(
    code="ar",
    space=" ",
    patterns=("{time} {action} {who} {place}.", "يحب {who} {thing} لأنه {reason}."),
    slots={
        "time": _words("في الصباح|في المساء|يوم الأحد|عندما ينزل المطر|بعد المدرسة|في الربيع|كل يوم|في العطلة"),
        "who": _words("أبي|القط|المعلم|صديقي|جدي|سمير|الولد|جارنا|الطبيب|أخي|خالد|الفلاح"),
        "place": _words(
            "في الحديقة|في المدرسة|في البيت|في المكتبة|قرب النهر|في المحطة|في المطبخ|أمام الدكان|على الجبل|تحت الشجرة"
        ),
        "action": _words(
            "يقرأ كتابا|يغني أغنية|يشرب الشاي|يركض|يأكل الخبز|يكتب رسالة|يرسم صورة|ينام|يسمع الموسيقى|يلعب مع الأطفال|"
            "يدرس اللغة العربية|يلتقط صورة"
        ),
        "thing": _words(
            "التفاح|السفر|الثلج|الحليب الدافئ|هذا الكتاب|الورد الأحمر|البحر الأزرق|الخبز الطازج|اللعب|الشاي"
        ),
        "reason": _words("ممتع جدا|لذيذ جدا|يجعله سعيدا|جميل المنظر|يذكره بعائلته|ليس غاليا"),
    },
    capital_questions=("ما هي عاصمة {country}؟", "ما اسم عاصمة {country}؟", "أخبرني عن عاصمة {country}."),
    capital_answer="عاصمة {country} هي {city}.",
    capitals=_capitals(
        "فرنسا:باريس|ألمانيا:برلين|إيطاليا:روما|إسبانيا:مدريد|اليابان:طوكيو|الصين:بكين|"
        "الهند:نيودلهي|مصر:القاهرة|روسيا:موسكو|"
        "بريطانيا:لندن|كندا:أوتاوا|البرازيل:برازيليا|اليونان:أثينا|تركيا:أنقرة|تايلاند:بانكوك|"
        "فيتنام:هانوي|العراق:بغداد|"
        "سوريا:دمشق|السويد:ستوكهولم|البرتغال:لشبونة"
    ),
    asks=(("مرحبا!", "مرحبا! سعيد بلقائك."), ("ما لون السماء؟", "لون السماء أزرق."), ("شكرا!", "عفوا!")),
)
HINDI = LanguageTable(
    code="hi",
    space=" ",
    patterns=("{time} {who} {place} {action}।", "{who} को {thing} बहुत पसंद है, क्योंकि {reason}।"),
    slots={
        "time": _words("आज सुबह|कल शाम को|रविवार को|बारिश में|स्कूल के बाद|वसंत में|हर दिन|छुट्टी में"),
        "who": _words("मेरा भाई|छोटा कुत्ता|अध्यापक|मेरा दोस्त|राम|मोहन|वह लड़का|किसान|पड़ोसी|डॉक्टर|राजू|चाचा"),
        "place": _words("बगीचे में|स्कूल में|घर पर|पुस्तकालय में|नदी के पास|स्टेशन पर|रसोई में|पेड़ के नीचे|दुकान के सामने|पहाड़ पर"),
        "action": _words(
            "किताब पढ़ता है|गाना गाता है|चाय पीता है|दौड़ता है|रोटी खाता है|चिट्ठी लिखता है|चित्र बनाता है|सोता है|"
            "संगीत सुनता है|बच्चों के साथ खेलता है|हिंदी सीखता है|फोटो खींचता है"
        ),
        "thing": _words("सेब|संगीत|ठंडा मौसम|गरम दूध|यह घर|लाल फूल|नीला समुद्र|ताजा खाना|क्रिकेट|सिनेमा"),
        "reason": _words("यह बहुत मजेदार है|यह बहुत अच्छा है|इससे खुशी मिलती है|यह सुंदर है|यह सबके लिए है|यह महंगा नहीं है"),
    },
    capital_questions=(
        "{country} की राजधानी क्या है?",
        "{country} की राजधानी कौन सा शहर है?",
        "{country} की राजधानी बताइए।",
    ),
    capital_answer="{country} की राजधानी {city} है।",
    capitals=_capitals(
        "फ्रांस:पेरिस|जर्मनी:बर्लिन|इटली:रोम|स्पेन:मैड्रिड|जापान:टोक्यो|चीन:बीजिंग|भारत:नई दिल्ली|"
        "मिस्र:काहिरा|रूस:मॉस्को|"
        "ब्रिटेन:लंदन|कनाडा:ओटावा|ब्राज़ील:ब्रासीलिया|यूनान:एथेंस|तुर्की:अंकारा|थाईलैंड:बैंकॉक|"
        "वियतनाम:हनोई|नेपाल:काठमांडू|"
        "अमेरिका:वाशिंगटन|स्वीडन:स्टॉकहोम|पुर्तगाल:लिस्बन"
    ),
    asks=(
        ("नमस्ते!", "नमस्ते! आपसे मिलकर खुशी हुई।"),
        ("आसमान का रंग क्या है?", "आसमान का रंग नीला है।"),
        ("धन्यवाद!", "आपका स्वागत है!"),
    ),
)
SPANISH = LanguageTable(
    code="es",
    space=" ",
    patterns=("{time} {who} {action} {place}.", "A {who} le gusta {thing} porque {reason}."),
    slots={
        "time": _words("Por la mañana|Por la noche|El domingo|Cuando llueve|Después de clase|En primavera|Cada día"),
        "who": _words("mi madre|un gato|la maestra|mi amigo|mi abuelo|Carlos|una niña|Ana|mi vecino|Lucía"),
        "place": _words("en el parque|en la escuela|en casa|en la biblioteca|junto al río|en la estación|en el jardín"),
        "action": _words("lee un libro|canta una canción|bebe té|corre|come pan|escribe una carta|dibuja|duerme|juega"),
        "thing": _words("la música|la nieve|la leche caliente|este libro|el mar azul|el pan|el cine|el español"),
        "reason": _words("es muy divertido|es muy bueno|siempre trae alegría|es bonito|no es caro"),
    },
    capital_questions=("¿Cuál es la capital de {country}?", "¿Qué ciudad es la capital de {country}?"),
    capital_answer="La capital de {country} es {city}.",
    capitals=_capitals(
        "Francia:París|Alemania:Berlín|Italia:Roma|España:Madrid|Japón:Tokio|China:Pekín|India:Nueva Delhi|"
        "Egipto:El Cairo|Rusia:Moscú|Canadá:Ottawa|Brasil:Brasilia|Grecia:Atenas|Turquía:Ankara|"
        "Suecia:Estocolmo|Portugal:Lisboa"
    ),
    asks=(("¡Hola!", "¡Hola! Mucho gusto."), ("¿De qué color es el cielo?", "El cielo es azul.")),
)
FRENCH = LanguageTable(
    code="fr",
    space=" ",
    patterns=("{time}, {who} {action} {place}.", "{thing} plaît beaucoup à {who} parce que {reason}."),
    slots={
        "time": _words("Ce matin|Ce soir|Le dimanche|Quand il pleut|Après l'école|Au printemps|Chaque jour"),
        "who": _words("ma mère|un chat|la maîtresse|mon ami|mon frère|Marie|une fille|Paul|mon voisin|Léa"),
        "place": _words(
            "dans le parc|à l'école|à la maison|à la bibliothèque|près de la rivière|à la gare|dans le jardin"
        ),
        "action": _words("lit un livre|chante|boit du thé|court|mange du pain|écrit une lettre|dessine|dort|joue"),
        "thing": _words("La musique|La neige|Le lait chaud|Ce livre|La mer bleue|Le pain frais|Le cinéma|Le français"),
        "reason": _words("c'est très amusant|c'est très bon|cela rend heureux|c'est joli|ce n'est pas cher"),
    },
    capital_questions=("Quelle est la capitale {country} ?", "Quelle ville est la capitale {country} ?"),
    capital_answer="La capitale {country} est {city}.",
    capitals=_capitals(
        "de la France:Paris|de l'Allemagne:Berlin|de l'Italie:Rome|de l'Espagne:Madrid|du Japon:Tokyo|"
        "de la Chine:Pékin|de l'Inde:New Delhi|de l'Égypte:Le Caire|de la Russie:Moscou|"
        "du Canada:Ottawa|du Brésil:Brasilia|"
        "de la Grèce:Athènes|de la Turquie:Ankara|de la Suède:Stockholm|du Portugal:Lisbonne"
    ),
    asks=(
        ("Bonjour !", "Bonjour ! Ravi de vous rencontrer."),
        ("De quelle couleur est le ciel ?", "Le ciel est bleu."),
    ),
)
GERMAN = LanguageTable(
    code="de",
    space=" ",
    patterns=("{time} {action} {who} {place}.", "{thing} gefällt {reason}, sagt {who}."),
    slots={
        "time": _words("Heute Morgen|Am Abend|Am Sonntag|Bei Regen|Nach der Schule|Im Frühling|Jeden Tag"),
        "who": _words(
            "meine Mutter|eine Katze|der Lehrer|mein Freund|mein Opa|Jürgen|das Mädchen|Anna|der Nachbar|Käthe"
        ),
        "place": _words("im Park|in der Schule|zu Hause|in der Bücherei|am Fluss|am Bahnhof|im Garten"),
        "action": _words("liest|singt|malt|läuft|isst|schreibt|schläft|spielt|träumt"),
        "thing": _words("Die Musik|Der Schnee|Die warme Milch|Dieses Buch|Das blaue Meer|Das frische Brot|Der Film"),
        "reason": _words("uns allen sehr|den Kindern|der ganzen Familie|mir am besten|fast jedem"),
    },
    capital_questions=(
        "Was ist die Hauptstadt von {country}?",
        "Welche Stadt ist die Hauptstadt von {country}?",
    ),
    capital_answer="Die Hauptstadt von {country} ist {city}.",
    capitals=_capitals(
        "Frankreich:Paris|Deutschland:Berlin|Italien:Rom|Spanien:Madrid|Japan:Tokio|China:Peking|"
        "Indien:Neu-Delhi|Ägypten:Kairo|"
        "Russland:Moskau|Kanada:Ottawa|Brasilien:Brasilia|Griechenland:Athen|Österreich:Wien|"
        "Schweden:Stockholm|Portugal:Lissabon"
    ),
    asks=(
        ("Hallo!", "Hallo! Schön, dich zu sehen."),
        ("Welche Farbe hat der Himmel?", "Der Himmel ist blau."),
    ),
)
EMOJI = LanguageTable(
    code="emoji",
    space=" ",
    patterns=(
        "{who} {mood} {verb} {food} {weather}",
        "{weather} {greeting} {who} {food} {mood}",
        "{greeting} {mood} {who}",
    ),
    slots={
        "who": _words(
            "The cat 🐱|The dog 🐶|My friend 👩‍🚀|The fox 🦊|The bear 🐻|The family 👨‍👩‍👧‍👦|The frog 🐸|The lion 🦁"
        ),
        "mood": _words("😀|😂|😍|🥳|😴|👍🏽|❤️|🎉"),
        "verb": _words("loves|eats|shares|buys|cooks"),
        "food": _words("pizza 🍕|sushi 🍣|cake 🎂|apples 🍎|noodles 🍜|bread 🍞|ice cream 🍦|honey 🍯"),
        "weather": _words("in the sun ☀️|in the rain 🌧️|under the stars ✨|in the snow ❄️|under the rainbow 🌈"),
        "greeting": _words("Good morning 🌅|Hello 👋🏽|Good night 🌙|Happy birthday 🎂|Well done 🏆|Let's go 🚀"),
    },
    asks=(
        ("Say hello with an emoji.", "Hello 👋🏽"),
        ("Send me a heart.", "❤️"),
        ("Which emojis are animals?", "🐱 🐶 🦊 🐻 🐸 🦁"),
        ("Count with emojis.", "1️⃣ 2️⃣ 3️⃣"),
    ),
)

LANGUAGES: tuple[LanguageTable, ...] = (CHINESE, JAPANESE, ARABIC, HINDI, SPANISH, FRENCH, GERMAN, EMOJI)
